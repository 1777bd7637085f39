//! What is generated from the command line's own description: completions and manual pages.

use std::fs;
use std::io;
use std::path::Path;

use braid_daemon::failure::Failure;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::Cli;
use crate::terminal::answer;

/// `braid completions`.
pub fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "braid", &mut script);
    answer(&String::from_utf8_lossy(&script))
}

/// `braid man`: a page for the program and one for each command, named as git's are
/// (`braid-config-check.1`).
pub fn pages(directory: &Path) -> Result<(), Failure> {
    let title = directory.display();
    let made = !directory.is_dir();
    let write = || -> io::Result<usize> {
        // Not those above it: that is a word that was typed wrongly.
        if made {
            fs::create_dir(directory)?;
        }
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        page(directory, &command, "braid")
    };
    let written = write().map_err(|error| {
        let failure = Failure::io(format!("manual pages in {title}"), &error);
        match error.kind() {
            io::ErrorKind::NotFound => failure.fix("make the directory above it first"),
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
                failure.fix("name a directory: a file of that name is there")
            }
            _ => failure,
        }
    })?;
    let new = if made { " (new directory)" } else { "" };
    answer(&format!("{title}{new}: {written} pages\n"))
}

fn page(directory: &Path, command: &clap::Command, name: &str) -> io::Result<usize> {
    let mut written = 1;
    for inner in command.get_subcommands() {
        written += page(directory, inner, &format!("{name}-{}", inner.get_name()))?;
    }
    let mut text = Vec::new();
    Man::new(command.clone().name(name.to_owned())).render(&mut text)?;
    fs::write(directory.join(format!("{name}.1")), text)?;
    Ok(written)
}
