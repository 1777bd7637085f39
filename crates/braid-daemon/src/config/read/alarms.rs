//! `[[alarm]]` and `[mail]`.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use braid_alarm::MailServer;
use braid_alarm::destination::MailEncryption;
use braid_host::config::{Located, Problem, Table, tables};
use braid_host::user_error::UserError;
use toml::de::DeTable;

use super::super::alarm::{AlarmCondition, AlarmConfig, AlarmLimit};
use super::uplinks::UplinkDraft;
use super::{ALARM, MAIL, SECTIONS, own_name};

/// Maximum number of alarms: each is judged every second.
const MAX_ALARMS: usize = 64;
/// Maximum number of URLs, and of addresses, of one alarm.
const MAX_DESTINATIONS: usize = 16;
/// Bounds of `for`.
const HOLD_TIMES: (Duration, Duration) = (Duration::ZERO, Duration::from_secs(24 * 3600));
/// Default of `for`: longer than a line takes that is switched off and on.
const DEFAULT_HOLD: Duration = Duration::from_secs(30);

const COMMAND_EXAMPLE: &str = "[\"/usr/local/bin/tell\", \"--now\"]";
const LIMIT_FIX: &str =
    "write a part like \"80 %\" for quota and loss, a time like \"300 ms\" for rtt";

pub(super) fn alarms(
    table: &mut Table<'_, '_>,
    uplinks: &[UplinkDraft],
    has_mail: bool,
    problems: &mut Vec<Problem>,
) -> Vec<AlarmConfig> {
    let mut alarms = Vec::new();
    let mut names = Vec::new();
    for (number, (inner, at)) in (1..).zip(tables(table, "alarm", problems)) {
        if number == MAX_ALARMS + 1 {
            let what = format!("more than {MAX_ALARMS} alarms");
            problems.push(Problem::new(what, at, "one too many").fix("join some of them"));
            break;
        }
        let mut table = Table::new(ALARM.0, ALARM.1, inner);
        let unnamed = (format!("alarm-{number}"), at.clone());
        let name = own_name(&mut table, "alarm", unnamed, &names, problems);
        let alarm = alarm(table, &name.value, at, uplinks, has_mail, problems);
        names.push(name);
        alarms.extend(alarm);
    }
    alarms
}

fn alarm(
    mut table: Table<'_, '_>,
    name: &str,
    at: Range<usize>,
    uplinks: &[UplinkDraft],
    has_mail: bool,
    problems: &mut Vec<Problem>,
) -> Option<AlarmConfig> {
    let had_when = table.has("when");
    let when: Option<Located<AlarmCondition>> =
        table.keyword("when", &AlarmCondition::NAMES, problems);
    let limit: Option<Located<AlarmLimit>> = table.parsed("at", LIMIT_FIX, problems);
    let uplink = table.text("uplink", problems);
    let hold = table.time("for", HOLD_TIMES, problems);
    let before = problems.len();
    let command = table.words("command", COMMAND_EXAMPLE, problems);
    let webhook: Vec<Located<String>> = table.list("webhook", "write a URL", problems);
    let mail: Vec<Located<String>> = table.list("mail", "write an address of e-mail", problems);
    // Something that is wrong was meant to tell somebody.
    let told = problems.len() > before
        || [&command, &webhook, &mail]
            .iter()
            .any(|list| !list.is_empty());
    table.finish(SECTIONS, problems);

    if !told {
        let fix = "add a command, a webhook or an address of e-mail";
        problems.push(
            Problem::new(
                format!("alarm {name:?} tells nobody"),
                at.clone(),
                "this one",
            )
            .fix(fix),
        );
    }
    for (key, list) in [("webhook", &webhook), ("mail", &mail)] {
        if let Some(one) = list.get(MAX_DESTINATIONS) {
            let what = format!("more than {MAX_DESTINATIONS} entries of `{key}`");
            problems.push(Problem::new(what, one.at.clone(), "one too many").fix("leave some out"));
        }
    }
    check_destinations(&command, &webhook, &mail, has_mail, problems);
    let Some(when) = when else {
        if !had_when {
            let what = format!("alarm {name:?} without `when`");
            let fix = format!(
                "add a line like when = \"uplink-dead\" (there are {})",
                AlarmCondition::NAMES.join(", ")
            );
            problems.push(Problem::new(what, at, "raised by what?").fix(fix));
        }
        return None;
    };
    let usual = when.value.default_limit();
    if let Some(limit) = &limit
        && usual.is_none_or(|usual| {
            std::mem::discriminant(&usual) != std::mem::discriminant(&limit.value)
        })
    {
        let what = format!("`at` cannot be \"{}\" here", limit.value);
        problems.push(
            Problem::new(what, limit.at.clone(), "a limit of what?")
                .also(when.at.clone(), "this condition")
                .fix(LIMIT_FIX),
        );
    }
    if let Some(uplink) = &uplink {
        check_uplink(uplink, &when, uplinks, problems);
    }
    let values = |list: Vec<Located<String>>| list.into_iter().map(|one| one.value).collect();
    Some(AlarmConfig {
        name: name.to_owned(),
        when: when.value,
        at: limit.map(|limit| limit.value).or(usual),
        uplink: uplink.map(|uplink| uplink.value),
        hold: hold.map_or(DEFAULT_HOLD, |hold| hold.value),
        command: values(command),
        webhook: values(webhook),
        mail: values(mail),
    })
}

fn check_uplink(
    uplink: &Located<String>,
    when: &Located<AlarmCondition>,
    uplinks: &[UplinkDraft],
    problems: &mut Vec<Problem>,
) {
    if !when.value.is_about_uplinks() {
        let what = "`uplink` in an alarm that is about no single uplink";
        problems.push(
            Problem::new(what, uplink.at.clone(), "has no effect")
                .also(when.at.clone(), "this condition")
                .fix("leave the line out"),
        );
    }
    // Without [[uplink]] the names are those of the devices that are found.
    let known = || uplinks.iter().map(|draft| draft.name.value.as_str());
    if !uplinks.is_empty() && !known().any(|name| name == uplink.value) {
        let unknown = UserError::unknown_uplink(&uplink.value, known());
        problems.push(
            Problem::new(unknown.text, uplink.at.clone(), "this name")
                .fix(unknown.fix.unwrap_or_default()),
        );
    }
}

fn check_destinations(
    command: &[Located<String>],
    webhook: &[Located<String>],
    mail: &[Located<String>],
    has_mail: bool,
    problems: &mut Vec<Problem>,
) {
    if let Some(program) = command.first().filter(|word| !word.value.starts_with('/')) {
        let what = format!("`command` begins with {:?}", program.value);
        let fix = "write the program's whole path, and its arguments as further words: no shell reads them";
        problems.push(Problem::new(what, program.at.clone(), "no absolute path").fix(fix));
    }
    for url in webhook.iter().filter(|url| !is_url(&url.value)) {
        let what = "`webhook` is no URL";
        let fix = "write it as \"https://ntfy.example.org/braid\"";
        problems.push(Problem::new(what, url.at.clone(), "neither http:// nor https://").fix(fix));
    }
    for address in mail
        .iter()
        .filter(|address| !is_mail_address(&address.value))
    {
        let what = format!("`mail` cannot be {:?}", address.value);
        problems.push(
            Problem::new(what, address.at.clone(), "no address")
                .fix("write it as \"me@example.org\""),
        );
    }
    if let Some(first) = mail.first().filter(|_| !has_mail) {
        let fix = "add [mail] with server and from";
        problems.push(
            Problem::new("`mail` without a server", first.at.clone(), "sent by whom?").fix(fix),
        );
    }
}

fn is_url(text: &str) -> bool {
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"));
    rest.is_some_and(|rest| {
        let host = rest.split('/').next().unwrap_or_default();
        !host.is_empty() && text.chars().all(|c| c.is_ascii_graphic())
    })
}

fn is_mail_address(text: &str) -> bool {
    let parts = text.rsplit_once('@');
    parts.is_some_and(|(local, domain)| !local.is_empty() && !domain.is_empty())
        && text.chars().all(|c| !c.is_control() && !c.is_whitespace())
}

/// Reads `[mail]`.
pub(super) fn mail(
    inner: &DeTable<'_>,
    at: Range<usize>,
    problems: &mut Vec<Problem>,
) -> Option<MailServer> {
    let mut table = Table::new(MAIL.0, MAIL.1, inner);
    let server = table.text("server", problems);
    let port = table.count("port", 1..=65_535, problems);
    let encryption: Option<Located<MailEncryption>> =
        table.keyword("encryption", &MailEncryption::NAMES, problems);
    let from = table.text("from", problems);
    let user = table.text("user", problems);
    let password_file = table.text("password_file", problems);
    table.finish(SECTIONS, problems);
    if let Some(from) = from.as_ref().filter(|from| !is_mail_address(&from.value)) {
        let what = format!("`from` cannot be {:?}", from.value);
        problems.push(
            Problem::new(what, from.at.clone(), "no address")
                .fix("write it as \"braid@example.org\""),
        );
    }
    let (login, other) = match (&user, &password_file) {
        (Some(user), None) => (Some(user), "password_file"),
        (None, Some(file)) => (Some(file), "user"),
        _ => (None, ""),
    };
    if let Some(login) = login {
        let what = format!("[mail] without `{other}`");
        problems.push(
            Problem::new(what, login.at.clone(), "half of a login").fix("write both or neither"),
        );
    }
    let encryption = encryption.map_or(MailEncryption::Tls, |word| word.value);
    if let (Some(user), MailEncryption::None) = (&user, encryption) {
        let what = "a password without encryption";
        problems.push(
            Problem::new(what, user.at.clone(), "anybody on the way reads it")
                .fix("write encryption = \"tls\" or \"starttls\""),
        );
    }
    let (Some(server), Some(from)) = (server, from) else {
        if !inner.keys().any(|key| key.get_ref() == "server")
            || !inner.keys().any(|key| key.get_ref() == "from")
        {
            let fix =
                "add lines like server = \"mail.example.org\" and from = \"braid@example.org\"";
            problems
                .push(Problem::new("[mail] needs `server` and `from`", at, "this one").fix(fix));
        }
        return None;
    };
    Some(MailServer {
        server: server.value,
        port: port.map_or(encryption.default_port(), |port| port.value as u16),
        encryption,
        from: from.value,
        user: user.map(|user| user.value),
        password_file: password_file.map(|path| PathBuf::from(path.value)),
    })
}
