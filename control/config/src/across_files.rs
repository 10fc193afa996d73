//! Checks for conflicts between the configuration files of one process.
//!
//! The appliances of one process share the EAL, and ring ports connect them.

use std::collections::BTreeMap;

use super::document::Document;
use super::errors::ConfigError;
use super::types::PortKind;

/// Returns conflicts between files: names, sockets, audit files, devices and cores that two appliances claim, ring
/// links with more than two ends or with different MTUs, and `[memory]` sections that differ.
pub fn check_together(documents: &[Document]) -> Vec<ConfigError> {
    let mut errors = check_link_ends(documents);
    for (index, document) in documents.iter().enumerate() {
        for other in &documents[..index] {
            check_pair(document, other, &mut errors);
        }
    }
    errors
}

fn check_pair(document: &Document, other: &Document, errors: &mut Vec<ConfigError>) {
    let (config, first) = (&document.config, &other.config);
    let file = first.file.display();
    if config.name == first.name {
        let name = &config.name;
        let message = format!("\"{name}\" is the name of {file} too: give each a name of its own");
        errors.push(document.error(&document.root, "name", message));
    }
    if config.management.socket == first.management.socket {
        let message = format!(
            "{} is the socket of {file} too: give each a socket of its own",
            config.management.socket.display()
        );
        errors.push(document.error(&document.management, "socket", message));
    }
    if let (Some(ours), true) =
        (config.programs_socket(), config.programs_socket() == first.programs_socket())
    {
        let message = format!(
            "{} is the socket of programs of {file} too: give each a socket of its own",
            ours.display()
        );
        errors.push(document.error(&document.programs, "socket", message));
    }
    let (ours, theirs) = (&config.management.audit.file, &first.management.audit.file);
    if let (Some(file), true) = (ours, ours == theirs) {
        let message = format!("{}: another appliance has this file: name another", file.display());
        errors.push(document.error(&document.management, "audit.file", message));
    }
    if config.memory != first.memory {
        let message =
            format!("differs from [memory] in {file}: one process has one, write the same");
        errors.push(document.error(&document.memory, "", message));
    }
    for worker in &config.workers {
        let core = worker.core.filter(|_| first.workers.iter().any(|w| w.core == worker.core));
        if let Some(core) = core {
            let message = format!("core {core} belongs to a worker of {file} already: use another");
            errors.push(document.error(&document.workers, "cores", message));
        }
    }
    for (port, places) in config.ports.iter().zip(&document.ports) {
        if first.ports.iter().any(|other| other.kind.same_device(&port.kind)) {
            let message =
                format!("{} belongs to a port of {file} already: use another", port.kind.device());
            errors.push(document.error(places, port.kind.device_key(), message));
        }
    }
}

type LinkEnds = Vec<(usize, usize)>;

/// Returns every ring link with the ports (document, port) at its ends.
fn ring_links(documents: &[Document]) -> BTreeMap<&str, LinkEnds> {
    let mut links: BTreeMap<&str, LinkEnds> = BTreeMap::new();
    for (d, document) in documents.iter().enumerate() {
        for (p, port) in document.config.ports.iter().enumerate() {
            if let PortKind::Ring { link } = &port.kind {
                links.entry(link).or_default().push((d, p));
            }
        }
    }
    links
}

fn check_link_ends(documents: &[Document]) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    for (link, ends) in ring_links(documents) {
        for &(d, p) in ends.iter().skip(2) {
            let message = format!("\"{link}\" has two ends already: name another link");
            errors.push(documents[d].error(&documents[d].ports[p], "link", message));
        }
        if let [(d, p), (e, q), ..] = ends[..] {
            let mtus = (documents[d].config.ports[p].mtu, documents[e].config.ports[q].mtu);
            if mtus.0 != mtus.1 {
                let (a, b) = (mtus.1, mtus.0);
                let message = format!(
                    "is {a}, but the port at the other end of \"{link}\" has {b}: write the same"
                );
                errors.push(documents[e].error(&documents[e].ports[q], "mtu", message));
            }
        }
    }
    errors
}

/// Returns an error for each ring link with only one end. A process does not start with such a link. A single file may
/// contain one end, because another file may contain the other.
pub fn check_one_ended_links(documents: &[Document]) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    for (link, ends) in ring_links(documents) {
        if let [(d, p)] = ends[..] {
            let message = format!(
                "\"{link}\" has one end only: start ddpd with the file of the other end too (--config \
                 twice)"
            );
            errors.push(documents[d].error(&documents[d].ports[p], "link", message));
        }
    }
    errors
}
