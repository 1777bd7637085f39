//! Configuration errors, shown at their place in the file.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, Severity,
    SourceCode,
};

use super::document::in_order;

/// Width to which diagnostics are wrapped, in columns.
const WIDTH: usize = 100;

/// Colour mode of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// For a terminal that wants colour.
    Colour,
    /// For a file, a pipe, or NO_COLOR.
    Plain,
}

/// Reasons why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file does not exist or cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file can be read and has errors.
    #[error("{name}: {} in the configuration", count(problems.len()))]
    Invalid {
        /// The file.
        name: String,
        /// All errors, in the order of the file.
        problems: Vec<Problem>,
    },
}

/// Most problems that [`ConfigError::in_a_line`] names; the others are counted.
const PROBLEMS_IN_A_LINE: usize = 3;

impl ConfigError {
    /// Returns the reason in one line, for a health line: the first problems with file, line and column.
    #[must_use]
    pub fn in_a_line(&self) -> String {
        let ConfigError::Invalid { name, problems } = self else {
            return self.to_string();
        };
        let shown = problems.iter().take(PROBLEMS_IN_A_LINE);
        let mut texts: Vec<String> = shown.map(|problem| problem.in_a_line(name)).collect();
        if let more @ 1.. = problems.len().saturating_sub(PROBLEMS_IN_A_LINE) {
            texts.push(format!("and {more} more"));
        }
        texts.join("; ")
    }

    /// Renders the error for users: each problem with file, line, column, caret and fix.
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

/// Warnings about an accepted configuration, in the order of the file.
#[derive(Debug, Default)]
pub struct Warnings(Vec<Problem>);

impl Warnings {
    /// Collects the warnings about `text`; they call it `name`.
    #[must_use]
    pub fn new(name: &str, text: &str, warnings: Vec<Problem>) -> Warnings {
        let source = Arc::new(NamedSource::new(name, text.to_owned()));
        Warnings(in_order(warnings, &source))
    }

    /// Returns their number.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Renders each with file, line, column, caret and fix, as [`ConfigError::render`] does; empty if
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
        // Writing to a string cannot fail.
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

/// One error in a configuration.
#[derive(Debug)]
pub struct Problem {
    what: String,
    labels: Vec<(Range<usize>, String)>,
    fix: Option<String>,
    severity: Severity,
    source: Option<Arc<NamedSource<String>>>,
}

impl Problem {
    /// Creates an error from a text and the words beside the caret.
    pub fn new(what: impl Into<String>, at: Range<usize>, label: impl Into<String>) -> Problem {
        Problem {
            what: what.into(),
            labels: vec![(at, label.into())],
            fix: None,
            severity: Severity::Error,
            source: None,
        }
    }

    /// Turns it into a warning, with which the configuration can still be used.
    pub fn warning(mut self) -> Problem {
        self.severity = Severity::Warning;
        self
    }

    /// Adds a fix.
    pub fn fix(mut self, fix: impl Into<String>) -> Problem {
        self.fix = Some(fix.into());
        self
    }

    /// Points at a second place.
    pub fn also(mut self, at: Range<usize>, label: impl Into<String>) -> Problem {
        self.labels.push((at, label.into()));
        self
    }

    /// Returns its offset in the file, in bytes.
    pub fn offset(&self) -> usize {
        self.labels.first().map_or(0, |(at, _)| at.start)
    }

    /// Returns its place and what it is, without the words beside the caret.
    fn in_a_line(&self, name: &str) -> String {
        let text = self.source.as_ref().map(|source| source.inner().as_str());
        let before = text.and_then(|text| text.get(..self.offset()));
        let Some(before) = before else {
            return format!("{name}: {}", self.what);
        };
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        format!("{name}:{line}:{column}: {}", self.what)
    }

    /// Attaches the text that its places refer to.
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
