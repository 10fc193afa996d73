//! States of an association and the legal transitions between them (RFC 9260 §4, figure 3).

/// State of an association. The states from SHUTDOWN-PENDING on belong to a graceful shutdown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// No association exists, or it has ended.
    Closed,
    /// INIT sent.
    CookieWait,
    /// COOKIE ECHO sent.
    CookieEchoed,
    /// Data may be exchanged.
    Established,
    /// This end will shut down once all its data is acknowledged.
    ShutdownPending,
    /// SHUTDOWN sent.
    ShutdownSent,
    /// SHUTDOWN received; not all data of this end is acknowledged.
    ShutdownReceived,
    /// SHUTDOWN ACK sent.
    ShutdownAckSent,
}

/// Event that moves an association from one state to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Transition {
    /// An acceptable INIT ACK was received.
    InitAck,
    /// COOKIE ACK, or a valid cookie, was received.
    Established,
    /// The peer reported a stale cookie; a new INIT requests another cookie.
    StaleCookie,
    /// The upper layer requested a graceful shutdown.
    Shutdown,
    /// SHUTDOWN is sent: all data of this end is acknowledged.
    ShutdownSent,
    /// The peer's SHUTDOWN was received.
    PeerShutdown,
    /// SHUTDOWN ACK is sent: all data of this end is acknowledged.
    ShutdownAckSent,
    /// A cookie proved that the peer restarted.
    Restart,
    /// The association ends: SHUTDOWN COMPLETE or ABORT is sent or received, the peer does not reply in time, ICMP
    /// reports that the peer does not support SCTP, or the upper layer cancels the setup.
    End,
}

impl State {
    /// Returns the state after `transition`; `None` if it is illegal in this state.
    pub(super) const fn apply(self, transition: Transition) -> Option<State> {
        use State as S;
        use Transition as T;
        Some(match (self, transition) {
            (S::CookieWait, T::InitAck) => S::CookieEchoed,
            (S::CookieWait | S::CookieEchoed, T::Established) => S::Established,
            (S::CookieEchoed, T::StaleCookie) => S::CookieWait,
            (S::Established, T::Shutdown) => S::ShutdownPending,
            (S::ShutdownPending, T::ShutdownSent) => S::ShutdownSent,
            (S::Established | S::ShutdownPending, T::PeerShutdown) => S::ShutdownReceived,
            (S::ShutdownReceived | S::ShutdownSent, T::ShutdownAckSent) => S::ShutdownAckSent,
            // RFC 9260 §5.2.4 action A: a restart is refused in SHUTDOWN-ACK-SENT.
            (
                S::CookieEchoed
                | S::Established
                | S::ShutdownPending
                | S::ShutdownSent
                | S::ShutdownReceived,
                T::Restart,
            ) => S::Established,
            (S::Closed, T::End) => return None,
            (_, T::End) => S::Closed,
            _ => return None,
        })
    }

    /// Returns true if received DATA chunks are processed in this state (RFC 9260 §6).
    pub const fn receives_data(self) -> bool {
        matches!(self, State::Established | State::ShutdownPending | State::ShutdownSent)
    }

    /// Returns true if DATA chunks may be sent in this state (RFC 9260 §6).
    pub const fn sends_data(self) -> bool {
        matches!(self, State::Established | State::ShutdownPending | State::ShutdownReceived)
    }

    /// Returns true if HEARTBEATs are answered in this state (RFC 9260 §8.3).
    pub(super) const fn answers_heartbeats(self) -> bool {
        matches!(
            self,
            State::CookieEchoed
                | State::Established
                | State::ShutdownPending
                | State::ShutdownReceived
        )
    }

    /// Returns true during the handshake.
    pub const fn is_opening(self) -> bool {
        matches!(self, State::CookieWait | State::CookieEchoed)
    }

    /// Returns true during a shutdown, and when closed.
    pub const fn is_closing(self) -> bool {
        !matches!(self, State::CookieWait | State::CookieEchoed | State::Established)
    }

    /// Returns a name for logs and machine-readable output.
    pub const fn name(self) -> &'static str {
        match self {
            State::Closed => "closed",
            State::CookieWait => "cookie-wait",
            State::CookieEchoed => "cookie-echoed",
            State::Established => "established",
            State::ShutdownPending => "shutdown-pending",
            State::ShutdownSent => "shutdown-sent",
            State::ShutdownReceived => "shutdown-received",
            State::ShutdownAckSent => "shutdown-ack-sent",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 8] = [
        State::Closed,
        State::CookieWait,
        State::CookieEchoed,
        State::Established,
        State::ShutdownPending,
        State::ShutdownSent,
        State::ShutdownReceived,
        State::ShutdownAckSent,
    ];
    const TRANSITIONS: [Transition; 9] = [
        Transition::InitAck,
        Transition::Established,
        Transition::StaleCookie,
        Transition::Shutdown,
        Transition::ShutdownSent,
        Transition::PeerShutdown,
        Transition::ShutdownAckSent,
        Transition::Restart,
        Transition::End,
    ];

    // RFC 9260 §4, figure 3: every legal and every illegal transition.
    #[test]
    fn transitions_match_rfc_9260_figure_3() {
        let mut table = String::new();
        for state in STATES {
            for transition in TRANSITIONS {
                let to = state.apply(transition).map_or("-", State::name);
                table += &format!("{:<18}", to);
            }
            table = format!("{}\n", table.trim_end());
        }
        let expected = "\
-                 -                 -                 -                 -                 -                 -                 -                 -
cookie-echoed     established       -                 -                 -                 -                 -                 -                 closed
-                 established       cookie-wait       -                 -                 -                 -                 established       closed
-                 -                 -                 shutdown-pending  -                 shutdown-received -                 established       closed
-                 -                 -                 -                 shutdown-sent     shutdown-received -                 established       closed
-                 -                 -                 -                 -                 -                 shutdown-ack-sent established       closed
-                 -                 -                 -                 -                 -                 shutdown-ack-sent established       closed
-                 -                 -                 -                 -                 -                 -                 -                 closed
";
        assert_eq!(table, expected);
    }

    // RFC 9260 §6, §8.3: states in which DATA is sent or processed and HEARTBEATs are answered.
    #[test]
    fn state_predicates_match_rfc_9260() {
        let names = |allows: fn(State) -> bool| -> Vec<_> {
            STATES.iter().filter(|state| allows(**state)).map(|state| state.name()).collect()
        };
        let receives = ["established", "shutdown-pending", "shutdown-sent"];
        assert_eq!(names(State::receives_data), receives);
        let sends = ["established", "shutdown-pending", "shutdown-received"];
        assert_eq!(names(State::sends_data), sends);
        let answers = ["cookie-echoed", "established", "shutdown-pending", "shutdown-received"];
        assert_eq!(names(State::answers_heartbeats), answers);
        assert_eq!(names(State::is_opening), ["cookie-wait", "cookie-echoed"]);
        let closing = [
            "closed",
            "shutdown-pending",
            "shutdown-sent",
            "shutdown-received",
            "shutdown-ack-sent",
        ];
        assert_eq!(names(State::is_closing), closing);
    }
}
