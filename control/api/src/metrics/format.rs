//! Text format of the metrics: OpenMetrics if the reader accepts it, otherwise the older text format of Prometheus.

/// Text format of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus's text format, version 0.0.4.
    Text,
}

impl Format {
    /// Returns the format for a reader with this `Accept` header. Without a header, returns the older text format.
    pub fn from_accept_header(header: Option<&str>) -> Format {
        match header {
            Some(accept) if accept.contains("application/openmetrics-text") => Format::OpenMetrics,
            _ => Format::Text,
        }
    }

    /// Returns the value of the `Content-Type` header.
    pub const fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Converts OpenMetrics text to this format.
    pub(super) fn convert(self, text: String) -> String {
        match self {
            Format::OpenMetrics => text,
            Format::Text => to_text_format(&text),
        }
    }
}

/// Converts OpenMetrics to the older text format. In the older format, HELP and TYPE name the sample with its suffix
/// instead of the metric family. The older format has no UNIT lines, no EOF line, and no type `info`, which becomes
/// a gauge.
fn to_text_format(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(_), sentence) => help = sentence,
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    other => ("", other),
                };
                if let Some(help) = help.take() {
                    out += &format!("# HELP {name}{suffix} {help}\n");
                }
                out += &format!("# TYPE {name}{suffix} {kind}\n");
            }
            (Some("#"), ..) => {}
            _ => {
                out += line;
                out.push('\n');
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_header_selects_format() {
        assert_eq!(Format::from_accept_header(None), Format::Text);
        assert_eq!(Format::from_accept_header(Some("*/*")), Format::Text);
        let prometheus = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
        assert_eq!(Format::from_accept_header(Some(prometheus)), Format::OpenMetrics);
    }

    #[test]
    fn text_format_names_samples() {
        let text = "# HELP a_bytes Bytes, all.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\na_bytes_total{x=\"1 2\"} 3\n\
                    # HELP b B.\n# TYPE b info\nb_info{v=\"1\"} 1\n# TYPE c gauge\nc 4\n# EOF\n";
        assert_eq!(Format::OpenMetrics.convert(text.into()), text);
        assert_eq!(
            Format::Text.convert(text.into()),
            "# HELP a_bytes_total Bytes, all.\n# TYPE a_bytes_total counter\na_bytes_total{x=\"1 2\"} 3\n\
             # HELP b_info B.\n# TYPE b_info gauge\nb_info{v=\"1\"} 1\n# TYPE c gauge\nc 4\n"
        );
    }
}
