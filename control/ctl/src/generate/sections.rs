//! Sections of the man pages that the command line definitions do not contain: exit status, examples, files, other
//! pages.

use crate::exit::Exit;

/// A heading, and its items with their explanations.
type Section = (&'static str, Vec<(String, &'static str)>);

/// Returns the sections of `ddpctl(1)`, in roff.
pub(super) fn ddpctl() -> String {
    let status = [
        (Exit::Success, "Done."),
        (Exit::Failed, "The operation failed, or its object does not exist."),
        (Exit::Usage, "The command line, or what it asks for, is wrong."),
        (Exit::Unreachable, "The appliance cannot be reached; with --kernel, the peer."),
        (
            Exit::Refused,
            "The peer refused: it rejected the connection or ended the stream with an error.",
        ),
        (
            Exit::Unconfirmed,
            "All bytes were acknowledged by the peer's TCP or SCTP, and their placement was not confirmed.",
        ),
        (Exit::Silent, "The appliance accepts connections and does not answer."),
        (Exit::TimedOut, "The time of --timeout is over."),
    ];
    let mut status: Vec<(String, &str)> =
        status.into_iter().map(|(exit, text)| ((exit as u8).to_string(), text)).collect();
    status.push(("128+N".into(), "Ended by signal N, as a shell shows it."));
    pages(&[
        ("EXIT STATUS", status),
        (
            "EXAMPLES",
            items(&[
                ("ddpctl status", "State, memory and notes of the appliance."),
                (
                    "ddpctl put file tcp://192.0.2.1:7471/inbox",
                    "Send a file into the region inbox of a peer.",
                ),
                (
                    "ddpctl events --follow --severity warning",
                    "Watch refusals, errors and warnings.",
                ),
                ("ddpctl why 192.0.2.7", "What happened to the streams of a peer."),
                (
                    "ddpctl explain net_no_listener",
                    "What a drop reason means, its usual cause and the remedy.",
                ),
                (
                    "ddpctl --json streams | jq '.[].remote'",
                    "The peers of all streams, for scripts.",
                ),
            ]),
        ),
        (
            "ENVIRONMENT",
            items(&[("DDPD_SOCKET", "The appliance's socket, unless --socket names one.")]),
        ),
        (
            "FILES",
            items(&[(
                config::DEFAULT_SOCKET,
                "The socket of an appliance without management.socket.",
            )]),
        ),
    ]) + &see_also("ddpd(8), ddpd.toml(5)")
}

/// Returns the sections of `ddpd(8)`, in roff.
pub(super) fn ddpd() -> String {
    pages(&[
        (
            "EXIT STATUS",
            items(&[
                ("0", "Ended as asked; of check and doctor: no errors were found."),
                ("1", "Failed while running; of doctor: there are errors."),
                ("2", "The command line, a configuration file or the machine does not fit."),
            ]),
        ),
        (
            "SIGNALS",
            items(&[
                ("TERM, INT", "Drain and end; the second one ends at once."),
                ("HUP", "Read the configuration again."),
            ]),
        ),
        (
            "EXAMPLES",
            items(&[
                (
                    "ddpd check /etc/ddpd/ddpd.toml",
                    "Report all that keeps an appliance from starting.",
                ),
                (
                    "ddpd doctor --config /etc/ddpd/ddpd.toml",
                    "Report also what makes it slow, with remedies.",
                ),
                ("ddpd --config /etc/ddpd/ddpd.toml", "Run it."),
            ]),
        ),
        (
            "FILES",
            items(&[
                ("/etc/ddpd/ddpd.toml", "The configuration that the unit ddpd.service names."),
                (
                    config::DEFAULT_SOCKET,
                    "The socket of the management API, unless management.socket names one.",
                ),
                (
                    "/var/lib/ddpd",
                    "The state directory of the unit: files of regions and queues may lie there.",
                ),
            ]),
        ),
    ]) + &see_also("ddpctl(1), ddpd.toml(5)")
}

fn items(items: &[(&str, &'static str)]) -> Vec<(String, &'static str)> {
    items.iter().map(|&(item, text)| (item.to_owned(), text)).collect()
}

fn pages(sections: &[Section]) -> String {
    let mut text = String::new();
    for (heading, items) in sections {
        text += &match heading.contains(' ') {
            true => format!(".SH \"{heading}\"\n"),
            false => format!(".SH {heading}\n"),
        };
        for (item, explanation) in items {
            text += &format!(".TP\n\\fB{}\\fR\n{}\n", escape(item), escape(explanation));
        }
    }
    text
}

fn see_also(others: &str) -> String {
    format!(".SH \"SEE ALSO\"\n{}\n", escape(others))
}

/// Escapes a text. The text must not begin a line with a control character of roff.
fn escape(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}
