//! Sections of the targets' configuration files.

/// Returns the section of a listener on the interface `front`. `keys` are further lines of the section.
pub(crate) fn listener_section(name: &str, port: u16, ulp: &str, keys: &str) -> String {
    format!(
        "[[listener]]\nname = \"{name}\"\ninterface = \"front\"\nport = {port}\nulp = \"{ulp}\"\n{keys}\n"
    )
}
