//! States of a connection and their legal transitions (RFC 9293 §3.3.2, figure 5).

use core::fmt;

/// State of a connection. LISTEN is a property of the listener, not of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// The connection has ended.
    Closed,
    /// Our SYN was sent.
    SynSent,
    /// A SYN was received and our SYN was sent. Our SYN is not acknowledged.
    SynReceived,
    /// Data may flow in both directions.
    Established,
    /// Our FIN was sent.
    FinWait1,
    /// Our FIN is acknowledged; the peer may still send.
    FinWait2,
    /// The peer sent a FIN; we may still send.
    CloseWait,
    /// Our FIN was sent before the peer's FIN was received (simultaneous close). Our FIN is not acknowledged.
    Closing,
    /// The peer's FIN was received before our FIN was sent. Our FIN is not acknowledged.
    LastAck,
    /// Both FINs are acknowledged; old segments are discarded until 2 MSL have passed.
    TimeWait,
}

/// Events that change the state of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transition {
    /// A SYN that does not acknowledge ours arrived in SYN-SENT: simultaneous open.
    SynArrived,
    /// Our SYN was acknowledged (in SYN-SENT together with the peer's SYN).
    SynAcked,
    /// Our FIN was sent.
    FinSent,
    /// Our FIN was acknowledged.
    FinAcked,
    /// The peer's FIN was received in order.
    FinArrived,
    /// The connection is deleted: reset, abort, time-out, or end of TIME-WAIT.
    Delete,
}

impl State {
    /// Returns the next state, or `None` if the transition is illegal in this state.
    pub(crate) const fn next(self, transition: Transition) -> Option<State> {
        use State::*;
        use Transition::*;
        Some(match (self, transition) {
            (SynSent, SynArrived) => SynReceived,
            (SynSent | SynReceived, SynAcked) => Established,
            (SynReceived | Established, FinSent) => FinWait1,
            (CloseWait, FinSent) => LastAck,
            (FinWait1, FinAcked) => FinWait2,
            (Closing, FinAcked) => TimeWait,
            (LastAck, FinAcked) => Closed,
            (SynReceived | Established, FinArrived) => CloseWait,
            (FinWait1, FinArrived) => Closing,
            (FinWait2, FinArrived) => TimeWait,
            (Closed, Delete) => return None,
            (_, Delete) => Closed,
            _ => return None,
        })
    }

    /// Returns true in ESTABLISHED and all later states except CLOSED.
    pub const fn is_synchronized(self) -> bool {
        !matches!(self, State::Closed | State::SynSent | State::SynReceived)
    }

    /// Returns true in states in which the peer may send data (RFC 9293 §3.10.7.4, seventh check).
    pub(crate) const fn may_receive(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Returns true in states in which new data may be sent.
    pub(crate) const fn may_send(self) -> bool {
        matches!(self, State::Established | State::CloseWait)
    }

    /// Returns true in states in which data or a FIN may be unacknowledged.
    pub(crate) const fn may_retransmit(self) -> bool {
        use State::*;
        matches!(self, Established | CloseWait | FinWait1 | Closing | LastAck)
    }

    /// Returns the state with this number, as records of the flight recorder store it.
    pub fn from_number(number: u32) -> Option<State> {
        STATES.into_iter().find(|state| *state as u32 == number)
    }

    /// Returns the name in RFC 9293.
    pub const fn name(self) -> &'static str {
        match self {
            State::Closed => "CLOSED",
            State::SynSent => "SYN-SENT",
            State::SynReceived => "SYN-RECEIVED",
            State::Established => "ESTABLISHED",
            State::FinWait1 => "FIN-WAIT-1",
            State::FinWait2 => "FIN-WAIT-2",
            State::CloseWait => "CLOSE-WAIT",
            State::Closing => "CLOSING",
            State::LastAck => "LAST-ACK",
            State::TimeWait => "TIME-WAIT",
        }
    }
}

const STATES: [State; 10] = [
    State::Closed,
    State::SynSent,
    State::SynReceived,
    State::Established,
    State::FinWait1,
    State::FinWait2,
    State::CloseWait,
    State::Closing,
    State::LastAck,
    State::TimeWait,
];

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRANSITIONS: [Transition; 6] = [
        Transition::SynArrived,
        Transition::SynAcked,
        Transition::FinSent,
        Transition::FinAcked,
        Transition::FinArrived,
        Transition::Delete,
    ];

    // RFC 9293 §3.3.2, figure 5: exactly these transitions are legal. `None` is an illegal transition.
    #[test]
    fn state_transitions_follow_rfc_9293_figure_5() {
        use State::*;
        #[rustfmt::skip]
        let table: [[Option<State>; 6]; 10] = [
            //             SYN arrives        SYN acked          FIN sent         FIN acked         FIN arrives       delete
            /* CLOSED */ [None,               None,              None,            None,             None,             None],
            /* S-SENT */ [Some(SynReceived),  Some(Established), None,            None,             None,             Some(Closed)],
            /* S-RCVD */ [None,               Some(Established), Some(FinWait1),  None,             Some(CloseWait),  Some(Closed)],
            /* ESTAB  */ [None,               None,              Some(FinWait1),  None,             Some(CloseWait),  Some(Closed)],
            /* FW1    */ [None,               None,              None,            Some(FinWait2),   Some(Closing),    Some(Closed)],
            /* FW2    */ [None,               None,              None,            None,             Some(TimeWait),   Some(Closed)],
            /* C-WAIT */ [None,               None,              Some(LastAck),   None,             None,             Some(Closed)],
            /* CLOSNG */ [None,               None,              None,            Some(TimeWait),   None,             Some(Closed)],
            /* L-ACK  */ [None,               None,              None,            Some(Closed),     None,             Some(Closed)],
            /* T-WAIT */ [None,               None,              None,            None,             None,             Some(Closed)],
        ];
        for (state, row) in STATES.iter().zip(table) {
            for (by, expected) in TRANSITIONS.iter().zip(row) {
                assert_eq!(state.next(*by), expected, "{state} by {by:?}");
            }
        }
    }
}
