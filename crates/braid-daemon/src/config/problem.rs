//! What is wrong with a configuration, shown where it is wrong.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, Severity,
    SourceCode,
};

/// Columns that diagnostics are wrapped to.
const WIDTH: usize = 100;

/// Whether text may carry colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// A terminal that wants it.
    Colour,
    /// A file, a pipe, or NO_COLOR.
    Plain,
}

/// Why there is no configuration to work with.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is not there or not readable.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is readable and wrong.
    #[error("{name}: {} in the configuration", count(problems.len()))]
    Invalid {
        /// The file.
        name: String,
        /// Everything that is wrong with it, in the order of the file.
        problems: Vec<Problem>,
    },
}

impl ConfigError {
    /// The error as a user reads it: each problem with file, line, column, caret and fix.
    #[must_use]
    pub fn render(&self, paint: Paint) -> String {
        match self {
            ConfigError::Read { path, source } => {
                let fix = match source.kind() {
                    io::ErrorKind::PermissionDenied => "use sudo, or let your user read it",
                    io::ErrorKind::NotFound => "name a file that exists with --config FILE",
                    io::ErrorKind::InvalidData => "it must be text in UTF-8",
                    _ => "see whether it is a file, and its disk in order",
                };
                let path = path.display();
                format!("error: cannot read the configuration {path}: {source}\n  fix: {fix}\n")
            }
            ConfigError::Invalid { name, problems } => {
                let text = shown(problems, paint);
                format!("{text}error: {} in {name}\n", count(problems.len()))
            }
        }
    }
}

/// What is odd about a configuration that is accepted: in the order of the file.
#[derive(Debug, Default)]
pub struct Warnings(pub(super) Vec<Problem>);

impl Warnings {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is odd.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each with file, line, column, caret and what to do, as [`ConfigError::render`]; empty if
    /// there are none.
    #[must_use]
    pub fn render(&self, paint: Paint) -> String {
        shown(&self.0, paint)
    }
}

fn shown(problems: &[Problem], paint: Paint) -> String {
    let theme = match paint {
        Paint::Colour => GraphicalTheme::unicode(),
        Paint::Plain => GraphicalTheme::unicode_nocolor(),
    };
    let handler = GraphicalReportHandler::new_themed(theme).with_width(WIDTH);
    let mut text = String::new();
    for problem in problems {
        // Writing to a string has no way to go wrong.
        let _ = handler.render_report(&mut text, problem);
        text.push('\n');
    }
    text
}

fn count(problems: usize) -> String {
    match problems {
        1 => "1 problem".to_owned(),
        n => format!("{n} problems"),
    }
}

/// One thing that is wrong with a configuration.
#[derive(Debug)]
pub struct Problem {
    what: String,
    labels: Vec<(Range<usize>, String)>,
    fix: Option<String>,
    severity: Severity,
    source: Option<Arc<NamedSource<String>>>,
}

impl Problem {
    /// What is wrong, and the words beside the caret.
    pub fn new(what: impl Into<String>, at: Range<usize>, label: impl Into<String>) -> Problem {
        Problem {
            what: what.into(),
            labels: vec![(at, label.into())],
            fix: None,
            severity: Severity::Error,
            source: None,
        }
    }

    /// Makes it something odd, which does not stop the configuration from being used.
    pub fn warning(mut self) -> Problem {
        self.severity = Severity::Warning;
        self
    }

    /// Adds what to do about it.
    pub fn fix(mut self, fix: impl Into<String>) -> Problem {
        self.fix = Some(fix.into());
        self
    }

    /// Points at a second place that the problem is about.
    pub fn also(mut self, at: Range<usize>, label: impl Into<String>) -> Problem {
        self.labels.push((at, label.into()));
        self
    }

    /// Where in the file it is, in bytes.
    pub fn offset(&self) -> usize {
        self.labels.first().map_or(0, |(at, _)| at.start)
    }

    /// Gives the problem the text that its places are in.
    pub fn within(mut self, source: &Arc<NamedSource<String>>) -> Problem {
        self.source = Some(Arc::clone(source));
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Problem {}

impl Diagnostic for Problem {
    fn severity(&self) -> Option<Severity> {
        Some(self.severity)
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.fix
            .as_ref()
            .map(|fix| Box::new(fix) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.source
            .as_deref()
            .map(|source| source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let spans = self.labels.iter().enumerate().map(|(i, (at, label))| {
            let (label, at) = (Some(label.clone()), at.clone());
            match i {
                0 => LabeledSpan::new_primary_with_span(label, at),
                _ => LabeledSpan::new_with_span(label, at),
            }
        });
        Some(Box::new(spans))
    }
}
