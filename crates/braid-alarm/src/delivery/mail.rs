//! E-mail.

use lettre::message::header::ContentType;
use lettre::transport::smtp::authentication::Credentials;
use lettre::{SmtpTransport, Transport};

use super::ATTEMPT_TIMEOUT;
use crate::destination::{MailEncryption, MailServer};
use crate::message::Message;

/// Hands the message to the server.
pub(super) fn send(server: &MailServer, to: &str, message: &Message) -> Result<(), String> {
    let mail = compose(server, to, message)?;
    let host = server.server.as_str();
    let builder = match server.encryption {
        MailEncryption::Tls => SmtpTransport::relay(host).map_err(|error| error.to_string())?,
        MailEncryption::Starttls => {
            SmtpTransport::starttls_relay(host).map_err(|error| error.to_string())?
        }
        MailEncryption::None => SmtpTransport::builder_dangerous(host),
    };
    let builder = builder.port(server.port).timeout(Some(ATTEMPT_TIMEOUT));
    let builder = match credentials(server)? {
        Some(credentials) => builder.credentials(credentials),
        None => builder,
    };
    let sent = builder.build().send(&mail);
    sent.map(drop).map_err(|error| format!("{host}: {error}"))
}

fn compose(server: &MailServer, to: &str, message: &Message) -> Result<lettre::Message, String> {
    let address = |text: &str| text.parse().map_err(|error| format!("{text}: {error}"));
    lettre::Message::builder()
        .from(address(&server.from)?)
        .to(address(to)?)
        .subject(message.subject())
        .header(ContentType::TEXT_PLAIN)
        .body(message.text.clone())
        .map_err(|error| error.to_string())
}

fn credentials(server: &MailServer) -> Result<Option<Credentials>, String> {
    let (Some(user), Some(path)) = (&server.user, &server.password_file) else {
        return Ok(None);
    };
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read the password in {}: {error}", path.display()))?;
    let password = text.lines().next().unwrap_or_default().to_owned();
    Ok(Some(Credentials::new(user.clone(), password)))
}
