//! Messages to the user on stderr: the reasons of refusals. The program itself receives only an error number.

use std::collections::HashSet;
use std::fmt;
use std::io::Write;
use std::sync::Mutex;

use verbs_client::lock::lock;

/// Keys of the messages that were printed.
static PRINTED: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);

/// Prints one line, once per key and process.
pub fn once(key: &'static str, text: fmt::Arguments<'_>) {
    if lock(&PRINTED).get_or_insert_default().insert(key) {
        line(text);
    }
}

/// Prints one line.
pub fn line(text: fmt::Arguments<'_>) {
    // A failed write is ignored: there is no other place for the message.
    let _ = writeln!(std::io::stderr(), "ddpd verbs: {text}");
}
