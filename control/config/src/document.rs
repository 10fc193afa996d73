//! Converts the text of a file to a [`Config`], and the body of an API request to one section.

use std::path::Path;

use ddp::advert::is_name;
use toml::de::DeTable;

use super::check::{self, Sections};
use super::devices::{self, MemorySection};
use super::errors::{ConfigError, ConfigErrors, ErrorSink, SectionSpan};
use super::files::{self, FilesSection};
use super::reader::Section;
use super::source::Source;
use super::tuning::{self, ManagementSection, TcpSection};
use super::types::*;
use super::values;
use super::{
    Config, IpsecSection, ProgramsSection, ipsec, network, objects, ports, programs, sctp,
};
use crate::text;

/// A checked configuration with the positions of its sections in the file.
#[derive(Debug)]
pub struct Document {
    /// The configuration.
    pub config: Config,
    pub(super) memory: SectionSpan,
    pub(super) workers: SectionSpan,
    pub(super) ports: Vec<SectionSpan>,
    pub(super) interfaces: Vec<SectionSpan>,
    pub(super) regions: Vec<SectionSpan>,
    pub(super) programs: SectionSpan,
    pub(super) management: SectionSpan,
    pub(super) root: SectionSpan,
    pub(super) sink: ErrorSink,
}

impl Document {
    /// Reads and checks a file.
    pub fn read(file: &Path) -> Result<Self, ConfigErrors> {
        match text::read_file(file) {
            Ok(text) => Self::parse(file, &text),
            Err(message) => Err(ConfigErrors(vec![ConfigError {
                file: file.to_owned(),
                line: 0,
                key: String::new(),
                message,
            }])),
        }
    }

    /// Parses a text and checks it as if it were the content of `file`.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigErrors> {
        let sink = ErrorSink::new(file, text);
        let (table, syntax) = DeTable::parse_recoverable(text);
        for error in &syntax {
            let at = error.span().map_or(0, |span| span.start);
            let what = error.message().trim_end_matches('.').replace('\n', "; ");
            let remedy = boolean_remedy(text, at).unwrap_or_default();
            sink.report_offset(at, "", format!("is not TOML here: {what}{remedy}"));
        }
        if !syntax.is_empty() {
            // After a syntax error the parser's recovery would cause spurious errors.
            return Err(ConfigErrors(sink.take_errors()));
        }
        let draft = UncheckedDocument::read(file, Section::root(&sink, table.get_ref()), &sink);
        check::check_file(&draft.sections, &sink);
        let errors = sink.take_errors();
        if errors.is_empty() {
            let source = Source::new(text, table.get_ref());
            Ok(draft.into_document(file, sink, source))
        } else {
            Err(ConfigErrors(errors))
        }
    }

    /// Returns an error about a key of this file, with the key's line.
    pub(super) fn error(&self, places: &SectionSpan, key: &str, message: String) -> ConfigError {
        self.sink.error_at(places.key_offset(key), places.full_key(key), message)
    }
}

/// Returns the remedy for a syntax error at byte `at` if the word there is a boolean in another notation, such as
/// `yes`.
fn boolean_remedy(text: &str, at: usize) -> Option<String> {
    let rest = text.get(at..)?;
    let end = rest
        .find(|c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c)))
        .unwrap_or(rest.len());
    let word = &rest[..end];
    let boolean = match word.to_ascii_lowercase().as_str() {
        "yes" | "on" | "true" => "true",
        "no" | "off" | "false" => "false",
        _ => return None,
    };
    Some(format!(": instead of {word} write {boolean}, or \"{word}\" in quotes if it is a text"))
}

/// All sections as read, before the checks between sections; complete if no error was reported.
struct UncheckedDocument {
    name: String,
    root: SectionSpan,
    memory: (MemorySection, SectionSpan),
    workers: (Vec<WorkerSection>, SectionSpan),
    tcp: TcpSection,
    ipsec: (IpsecSection, SectionSpan),
    programs: (Option<ProgramsSection>, SectionSpan),
    files: FilesSection,
    management: (ManagementSection, SectionSpan),
    sections: Sections,
}

impl UncheckedDocument {
    fn read(file: &Path, mut root: Section<'_, '_>, sink: &ErrorSink) -> Self {
        let name = root.optional("name", values::parse_name).unwrap_or_else(|| default_name(file));
        let memory = devices::read_memory(root.table("memory"));
        let workers = devices::read_workers(root.table("workers"));
        let mut port_names = Vec::new();
        let ports = read_sections(&mut root, "port", &mut port_names, |section| {
            ports::read_port(section, workers.0.len())
        });
        let known_ports: Vec<PortSection> = ports.iter().map(|(port, _)| port.clone()).collect();
        let mut interface_names = Vec::new();
        let interfaces = read_sections(&mut root, "interface", &mut interface_names, |section| {
            network::read_interface(section, &known_ports)
        });
        let mut region_names = Vec::new();
        let regions = read_sections(&mut root, "region", &mut region_names, objects::read_region);
        let listeners =
            read_sections(&mut root, "listener", &mut Vec::new(), objects::read_listener);
        let tcp = tuning::read_tcp(root.table("tcp"));
        let mpa = tuning::read_mpa(root.table("mpa"));
        let sctp = sctp::read_sctp(root.table("sctp"));
        let ipsec = ipsec::read_ipsec(root.table("ipsec"));
        let limits = tuning::read_limits(root.table("limits"));
        let programs = programs::read_programs(&mut root);
        let files = files::read_files(root.table("files"));
        let management = tuning::read_management(root.table("management"));
        for (key, example) in [
            ("port", "an appliance needs at least one: add a [[port]] section"),
            ("interface", "an appliance needs at least one: add an [[interface]] section"),
        ] {
            if !root.contains(key) || root.is_empty_list(key) {
                sink.report_offset(0, key, format!("is missing: {example}"));
            }
        }
        let root = root.finish();
        let sections = Sections {
            ports,
            port_names,
            interfaces,
            interface_names,
            regions,
            region_names,
            listeners,
            limits,
            mpa,
            sctp,
            ipsec: ipsec.0.is_enabled(),
        };
        Self { name, root, memory, workers, tcp, ipsec, programs, files, management, sections }
    }

    fn into_document(self, file: &Path, sink: ErrorSink, source: Source) -> Document {
        let (ports, port_places) = self.sections.ports.into_iter().unzip();
        let (interfaces, interface_places) = self.sections.interfaces.into_iter().unzip();
        let (regions, region_places) = self.sections.regions.into_iter().unzip();
        let config = Config {
            file: file.to_owned(),
            source,
            name: self.name,
            memory: self.memory.0,
            workers: self.workers.0,
            ports,
            interfaces,
            regions,
            listeners: self.sections.listeners.into_iter().map(|(listener, _)| listener).collect(),
            tcp: self.tcp,
            mpa: self.sections.mpa.0,
            sctp: self.sections.sctp.0,
            ipsec: self.ipsec.0,
            limits: self.sections.limits.0,
            programs: self.programs.0,
            files: self.files,
            management: self.management.0,
        };
        Document {
            config,
            memory: self.memory.1,
            workers: self.workers.1,
            ports: port_places,
            interfaces: interface_places,
            regions: region_places,
            programs: self.programs.1,
            management: self.management.1,
            root: self.root,
            sink,
        }
    }
}

/// Reads an array of tables. Omits tables with errors, but adds their names to `names`.
fn read_sections<'s, 'i, T>(
    root: &mut Section<'s, 'i>,
    key: &'static str,
    names: &mut Vec<String>,
    read: impl Fn(Section<'s, 'i>) -> (Option<T>, SectionSpan),
) -> Vec<(T, SectionSpan)> {
    let mut sections = Vec::new();
    for section in root.tables(key) {
        names.extend(section.string("name"));
        let (section, places) = read(section);
        sections.extend(section.map(|section| (section, places)));
    }
    sections
}

fn default_name(file: &Path) -> String {
    let stem = file.file_stem().and_then(|stem| stem.to_str());
    stem.filter(|stem| is_name(stem)).unwrap_or("ddpd").to_owned()
}

/// Reads a region from an API request: the same keys and error messages as in `[[region]]`.
pub fn region_from_json(json: &serde_json::Value) -> Result<RegionSection, ConfigErrors> {
    section_from_json("region", json, objects::read_region)
}

/// Reads a listener from an API request: the same keys and error messages as in `[[listener]]`. The
/// caller checks that its interface, address and regions exist.
pub fn listener_from_json(json: &serde_json::Value) -> Result<ListenerSection, ConfigErrors> {
    section_from_json("listener", json, objects::read_listener)
}

fn section_from_json<T>(
    key: &'static str,
    json: &serde_json::Value,
    read: impl Fn(Section<'_, '_>) -> (Option<T>, SectionSpan),
) -> Result<T, ConfigErrors> {
    let sink = ErrorSink::for_values();
    let errors = |message: String| ConfigErrors(vec![sink.error_at(0, "", message)]);
    let mut object = json.clone();
    remove_nulls(&mut object);
    if !object.is_object() {
        return Err(errors(format!("the body must be a JSON object with the keys of [[{key}]]")));
    }
    let text = toml::to_string(&serde_json::json!({ key: [object] }))
        .map_err(|error| errors(format!("the body cannot be parsed: {error}")))?;
    let table = DeTable::parse(&text)
        .map_err(|error| errors(format!("the body cannot be parsed: {}", error.message())))?;
    let mut root = Section::root(&sink, table.get_ref());
    let value = root.tables(key).into_iter().next().and_then(|section| read(section).0);
    let reported = sink.take_errors();
    match value {
        Some(value) if reported.is_empty() => Ok(value),
        _ => Err(ConfigErrors(reported)),
    }
}

/// Removes null members, which mean that a key is absent: TOML has no null.
fn remove_nulls(json: &mut serde_json::Value) {
    match json {
        serde_json::Value::Object(members) => {
            members.retain(|_, value| !value.is_null());
            members.values_mut().for_each(remove_nulls);
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}
