//! Shell completions and manual pages, generated from the command line's description.

use std::fs;
use std::io;
use std::path::Path;

use braid_host::user_error::UserError;
use clap::{CommandFactory, ValueHint};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::Cli;
use crate::terminal::answer;

/// Placeholder for uplink names in generated scripts.
const UPLINKS: &str = "BRAID_UPLINKS";

/// `braid completions`.
pub fn completions(shell: Shell) -> Result<(), UserError> {
    let mut script = Vec::new();
    let mut command = described(Cli::command());
    clap_complete::generate(shell, &mut command, "braid", &mut script);
    answer(&with_uplinks(shell, &String::from_utf8_lossy(&script)))
}

/// Marks the options whose values are not file names; shells complete unmarked values as file names.
fn described(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| {
        let unsaid = arg.get_value_hint() == ValueHint::Unknown;
        match arg.get_id().as_str() {
            "uplink" => arg.value_parser([UPLINKS]),
            _ if unsaid && !arg.is_positional() && arg.get_action().takes_values() => {
                arg.value_hint(ValueHint::Other)
            }
            _ => arg,
        }
    });
    command.mut_subcommands(described)
}

/// Makes a script ask the daemon for uplink names. clap_complete's stable interface supports only
/// fixed words.
fn with_uplinks(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => {
            let words = format!("COMPREPLY=($(compgen -W \"{UPLINKS}\" -- \"${{cur}}\"))");
            let script = script.replace(&words, "_braid_uplinks");
            format!("{BASH_UPLINKS}\n{script}")
        }
        Shell::Zsh => {
            let script = script.replace(&format!("({UPLINKS})"), "_braid_uplinks");
            script.replacen("\n_braid() {", &format!("\n{ZSH_UPLINKS}\n_braid() {{"), 1)
        }
        Shell::Fish => {
            let lines = script.lines().map(|line| match line.split_once(UPLINKS) {
                Some((before, _)) => format!("{before}(braid uplinks --names 2>/dev/null)\"\n"),
                None => format!("{line}\n"),
            });
            lines.collect()
        }
        _ => script.to_owned(),
    }
}

/// It does not use `compgen -W`, which would expand parts of a name. Without a daemon there are no
/// choices, and file names are not offered instead.
const BASH_UPLINKS: &str = r#"_braid_uplinks() {
    local name
    COMPREPLY=()
    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
        compopt +o bashdefault +o default
    fi
    while IFS= read -r name; do
        if [[ "${name}" == "${cur}"* ]]; then
            COMPREPLY+=("${name}")
        fi
    done < <(braid uplinks --names 2>/dev/null)
}
"#;

const ZSH_UPLINKS: &str = r#"_braid_uplinks() {
    local -a names
    names=(${(f)"$(braid uplinks --names 2>/dev/null)"})
    compadd -a names
}
"#;

/// Writes `braid man`: a page for the program and one per command, named as git's are
/// (`braid-config-check.1`).
pub fn pages(directory: &Path) -> Result<(), UserError> {
    let title = directory.display();
    let made = !directory.is_dir();
    let write = || -> io::Result<usize> {
        // Missing parents are not created: such a path is probably mistyped.
        if made {
            fs::create_dir(directory)?;
        }
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        page(directory, &command, "braid")
    };
    let written = write().map_err(|error| {
        let failure = UserError::io(format!("manual pages in {title}"), &error);
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
