//! `braid web`: the page for browsers.

use braid_host::run_dir::RunDir;
use braid_host::web::{TokenReport, TokenRequest};

use crate::cli::WebCommand;
use crate::client::{self, NoAnswer};
use crate::terminal::answer_either;
use crate::{CommandError, CommandResult, runtime};

/// Prints a login token for the daemon's page, or for a hub's: an unreachable one is told by `away`, and `follows` says
/// by what it takes over a changed configuration.
pub fn web(
    run_dir: &RunDir,
    command: &WebCommand,
    follows: &str,
    away: impl Fn(NoAnswer) -> CommandError,
) -> CommandResult {
    let WebCommand::Token { role, new, output } = command;
    let request = TokenRequest {
        role: (*role).into(),
        new: *new,
    };
    let answer = runtime()?.block_on(client::create(run_dir, "/v1/web/token", &request));
    let report: TokenReport = answer.map_err(away)?;
    answer_either(output.json, &report, |_| text(&report, follows))?;
    Ok(())
}

fn text(report: &TokenReport, follows: &str) -> String {
    let mut text = format!("{}\n", report.token);
    match report.urls.as_slice() {
        [] => text.push_str(&format!(
            "# no page yet: write [web] listen in the configuration, then {follows}\n"
        )),
        urls => text.push_str(&format!("# for {}\n", urls.join(" or "))),
    }
    if let Some(fingerprint) = &report.certificate_sha256 {
        text.push_str(&format!("# SHA-256 of its certificate: {fingerprint}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use braid_host::web::Role;

    use super::*;

    #[test]
    fn the_token_comes_first_and_then_its_place() {
        let mut report = TokenReport {
            role: Role::Viewer,
            token: "abcd-efgh".into(),
            urls: vec!["https://192.168.1.1:8443/".into()],
            certificate_sha256: Some("AB:CD".into()),
        };
        let expected =
            "abcd-efgh\n# for https://192.168.1.1:8443/\n# SHA-256 of its certificate: AB:CD\n";
        assert_eq!(text(&report, "reload it"), expected);
        report.urls.clear();
        report.certificate_sha256 = None;
        let expected =
            "abcd-efgh\n# no page yet: write [web] listen in the configuration, then reload it\n";
        assert_eq!(text(&report, "reload it"), expected);
    }
}
