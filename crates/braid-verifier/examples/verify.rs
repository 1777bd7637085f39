//! Prints this machine's verifier results for object files: `verify [--strict] FILE…`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let (options, files): (Vec<_>, Vec<_>) = std::env::args()
        .skip(1)
        .partition(|word| word.starts_with("--"));
    let mut status = ExitCode::SUCCESS;
    for file in files {
        let object = std::fs::read(&file).expect("a readable file");
        match braid_verifier::verify(&object, options.iter().any(|word| word == "--strict")) {
            Ok(programs) => {
                for program in programs {
                    let functions = program.deepest.functions.iter();
                    let chain: Vec<_> = functions
                        .map(|(name, own)| format!("{name} {own}"))
                        .collect();
                    println!(
                        "{:<16} {:>7} instructions, {:>3} bytes of stack: {}",
                        program.program,
                        program.instructions,
                        program.deepest.bytes,
                        chain.join(" > ")
                    );
                }
            }
            Err(refused) => {
                println!("{file}: {refused}");
                status = ExitCode::FAILURE;
            }
        }
    }
    status
}
