//! Sections of the man pages that clap cannot generate from the command line definitions: exit status, signals,
//! examples, environment, files, references to other pages.

use crate::exit::Exit;

/// Heading of a section, and its items, each with an explanation.
type Section = (&'static str, Vec<(String, &'static str)>);

/// Returns the sections of `ddpctl(1)`, in roff.
pub(super) fn ddpctl() -> String {
    let status = [
        (Exit::Success, "Done."),
        (Exit::Failed, "The operation failed, or its object does not exist."),
        (Exit::Usage, "The command line or the request is invalid."),
        (Exit::Unreachable, "The appliance cannot be reached; with --kernel, the peer."),
        (
            Exit::Refused,
            "The peer refused: it rejected the connection or ended the stream with an error.",
        ),
        (
            Exit::Unconfirmed,
            "The peer's TCP or SCTP acknowledged all bytes, but their placement was not confirmed.",
        ),
        (Exit::Silent, "The appliance accepts connections but does not answer."),
        (Exit::TimedOut, "The time limit of --timeout expired."),
    ];
    let mut status: Vec<(String, &str)> =
        status.into_iter().map(|(exit, text)| ((exit as u8).to_string(), text)).collect();
    status.push(("128+N".into(), "Ended by signal N, as a shell reports it."));
    pages(&[
        ("EXIT STATUS", status),
        (
            "EXAMPLES",
            items(&[
                ("ddpctl status", "Show state, memory and notes of the appliance."),
                (
                    "ddpctl put file tcp://192.0.2.1:7471/inbox",
                    "Send a file into the region inbox of a peer.",
                ),
                (
                    "ddpctl events --follow --severity warning",
                    "Watch refusals, errors and warnings.",
                ),
                ("ddpctl why 192.0.2.7", "Explain what happened to the streams of a peer."),
                (
                    "ddpctl explain net_no_listener",
                    "Explain a drop reason: meaning, usual cause, remedy.",
                ),
                (
                    "ddpctl run --lab -- rping -s",
                    "Run a verbs program with a private appliance: no device, root rights or configuration.",
                ),
                (
                    "ddpctl --json streams | jq '.[].remote'",
                    "Print the peers of all streams, for scripts.",
                ),
            ]),
        ),
        (
            "ENVIRONMENT",
            items(&[
                ("DDPD_SOCKET", "Path of the appliance's socket, unless --socket is given."),
                (
                    "DDPD_PROGRAMS_SOCKET",
                    "Path of the socket for programs, unless run --appliance is given.",
                ),
                ("DDPD_VERBS_LIBRARY", "Directory of the libraries of ddpctl run."),
            ]),
        ),
        (
            "FILES",
            items(&[(config::DEFAULT_SOCKET, "Socket of an appliance without management.socket.")]),
        ),
    ]) + &see_also("ddpd(8), ddpd.toml(5)")
}

/// Returns the sections of `ddpd(8)`, in roff.
pub(super) fn ddpd() -> String {
    pages(&[
        (
            "EXIT STATUS",
            items(&[
                ("0", "Ended on request; for check and doctor: no errors were found."),
                ("1", "Failed while running; for doctor: there are errors."),
                ("2", "The command line, a configuration file or the machine is unsuitable."),
            ]),
        ),
        (
            "SIGNALS",
            items(&[
                ("TERM, INT", "Drain and exit; the second one aborts all streams."),
                ("HUP", "Reload the configuration."),
            ]),
        ),
        (
            "EXAMPLES",
            items(&[
                (
                    "ddpd check /etc/ddpd/ddpd.toml",
                    "Report all errors that keep an appliance from starting.",
                ),
                (
                    "ddpd doctor --config /etc/ddpd/ddpd.toml",
                    "Report also what makes it slow, with remedies.",
                ),
                ("ddpd --config /etc/ddpd/ddpd.toml", "Run the appliance."),
            ]),
        ),
        (
            "FILES",
            items(&[
                ("/etc/ddpd/ddpd.toml", "Configuration named by the unit ddpd.service."),
                (
                    config::DEFAULT_SOCKET,
                    "Socket of the management API, unless management.socket is set.",
                ),
                ("/var/lib/ddpd", "State directory of the unit, for files of regions and queues."),
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

/// Escapes a text for roff. No line of the text may begin with a control character of roff (`.` or `'`).
fn escape(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}
