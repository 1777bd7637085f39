//! Login tokens, and the sessions that they open.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::login_attempts::LoginAttempts;
use crate::user_error::UserError;

/// Lifetime of a session that may act: a working day.
const OPERATOR_SESSION: Duration = Duration::from_secs(12 * 3600);
/// Lifetime of a session that may only look: a display on a wall is logged in once a month.
const VIEWER_SESSION: Duration = Duration::from_secs(30 * 24 * 3600);
/// Sessions of a role that were ended and have not expired, of which the server knows each.
const MAX_ENDED_SESSIONS: usize = 1024;

/// Characters of a token: none that is mistaken for another.
const ALPHABET: &[u8; 32] = b"abcdefghjkmnpqrstvwxyz0123456789";
/// Characters of a token, 5 random bits each.
const TOKEN_CHARS: usize = 28;
/// Characters between two dashes.
const GROUP_CHARS: usize = 4;

const NONCE_BYTES: usize = 16;
const TAG_BYTES: usize = 32;
/// Role, expiry and nonce.
const CLAIM_BYTES: usize = 1 + 8 + NONCE_BYTES;

/// Rights of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// May look.
    Viewer,
    /// May look and act.
    Operator,
}

impl Role {
    /// Returns its name in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
        }
    }

    fn lifetime(self) -> Duration {
        match self {
            Role::Viewer => VIEWER_SESSION,
            Role::Operator => OPERATOR_SESSION,
        }
    }

    fn byte(self) -> u8 {
        match self {
            Role::Viewer => 1,
            Role::Operator => 2,
        }
    }
}

/// A secret that opens sessions of one role: 140 random bits as text.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LoginToken(String);

impl LoginToken {
    /// Makes a new one.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn generate() -> Result<LoginToken, UserError> {
        let bytes: [u8; TOKEN_CHARS] = random()?;
        let chars: Vec<u8> = bytes
            .iter()
            .map(|byte| ALPHABET[usize::from(byte % 32)])
            .collect();
        let groups: Vec<_> = chars
            .chunks(GROUP_CHARS)
            .map(String::from_utf8_lossy)
            .collect();
        Ok(LoginToken(groups.join("-")))
    }

    /// Returns it as people type it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if a typed text is this token; the time taken does not depend on the place of a difference.
    fn is(&self, typed: &str, key: &hmac::Key) -> bool {
        let typed = hmac::sign(key, plain(typed).as_bytes());
        hmac::verify(key, plain(&self.0).as_bytes(), typed.as_ref()).is_ok()
    }

    fn signing_key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, plain(&self.0).as_bytes())
    }
}

impl fmt::Debug for LoginToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoginToken(…)")
    }
}

/// Returns a token's characters without those that people add or change.
fn plain(token: &str) -> String {
    let chars = token.chars().filter(char::is_ascii_alphanumeric);
    chars.map(|c| c.to_ascii_lowercase()).collect()
}

/// The token of each role; none if nobody has asked for it yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoginTokens {
    viewer: Option<LoginToken>,
    operator: Option<LoginToken>,
}

impl LoginTokens {
    /// Returns the token of a role.
    #[must_use]
    pub fn get(&self, role: Role) -> Option<&LoginToken> {
        match role {
            Role::Viewer => self.viewer.as_ref(),
            Role::Operator => self.operator.as_ref(),
        }
    }

    /// Returns the tokens with another one for a role.
    #[must_use]
    pub fn with(mut self, role: Role, token: LoginToken) -> LoginTokens {
        match role {
            Role::Viewer => self.viewer = Some(token),
            Role::Operator => self.operator = Some(token),
        }
        self
    }
}

/// A session, as its cookie proves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its rights.
    pub role: Role,
    /// Seconds since 1970 at which it ends.
    pub expires: u64,
    nonce: [u8; NONCE_BYTES],
}

impl Session {
    /// Returns the time for which it lives on.
    #[must_use]
    pub fn remaining(&self, now: SystemTime) -> Duration {
        Duration::from_secs(self.expires.saturating_sub(unix_secs(now)))
    }

    fn claim(&self) -> [u8; CLAIM_BYTES] {
        let mut claim = [self.role.byte(); CLAIM_BYTES];
        claim[1..9].copy_from_slice(&self.expires.to_be_bytes());
        claim[9..].copy_from_slice(&self.nonce);
        claim
    }
}

/// Reasons to refuse a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoginError {
    /// It is no token of ours.
    Wrong,
    /// Too many wrong tokens came from there: the next one is looked at after this time.
    TooMany(Duration),
    /// The system has no random numbers.
    NoRandom,
}

/// Decides who is logged in.
#[derive(Debug)]
pub struct WebAuth {
    /// Hides from timing where a typed token differs.
    compare_key: hmac::Key,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tokens: LoginTokens,
    attempts: LoginAttempts,
    /// Sessions ended by their user. Those of a role are apart, so that viewers, whose token many have, end no
    /// operator's.
    ended: HashMap<Role, EndedSessions>,
}

/// Sessions of one role that were ended before their time.
#[derive(Debug, Default)]
struct EndedSessions {
    /// Their expiry.
    expiries: HashMap<[u8; NONCE_BYTES], u64>,
    /// Latest expiry of sessions that have ended all together.
    all_until: u64,
}

impl EndedSessions {
    /// Ends a session; if there are too many, all of its role that have begun.
    fn insert(&mut self, session: &Session, now: u64) {
        self.expiries.retain(|_, expires| *expires > now);
        if self.expiries.len() < MAX_ENDED_SESSIONS {
            self.expiries.insert(session.nonce, session.expires);
        } else {
            self.expiries.clear();
            self.all_until = (now + session.role.lifetime().as_secs()).max(session.expires);
        }
    }

    fn contains(&self, session: &Session) -> bool {
        session.expires <= self.all_until || self.expiries.contains_key(&session.nonce)
    }
}

impl WebAuth {
    /// Starts with these tokens.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new(tokens: LoginTokens) -> Result<WebAuth, UserError> {
        let compare_key = hmac::Key::new(hmac::HMAC_SHA256, &random::<TAG_BYTES>()?);
        let state = State {
            tokens,
            attempts: LoginAttempts::default(),
            ended: HashMap::new(),
        };
        Ok(WebAuth {
            compare_key,
            state: Mutex::new(state),
        })
    }

    /// Returns the tokens.
    #[must_use]
    pub fn tokens(&self) -> LoginTokens {
        self.state().tokens.clone()
    }

    /// Replaces the tokens. Sessions of a token that changes end.
    pub fn set_tokens(&self, tokens: LoginTokens) {
        self.state().tokens = tokens;
    }

    /// Opens a session for a typed token, and returns it with its cookie.
    pub(super) fn log_in(
        &self,
        from: IpAddr,
        typed: &str,
        (now, clock): (Instant, SystemTime),
    ) -> Result<(Session, String), LoginError> {
        let mut state = self.state();
        state
            .attempts
            .check(from, now)
            .map_err(LoginError::TooMany)?;
        let found = [Role::Operator, Role::Viewer].into_iter().find(|role| {
            let token = state.tokens.get(*role);
            token.is_some_and(|token| token.is(typed, &self.compare_key))
        });
        let Some(role) = found else {
            state.attempts.note_failure(from, now);
            return Err(LoginError::Wrong);
        };
        state.attempts.forget(from);
        let session = Session {
            role,
            expires: unix_secs(clock + role.lifetime()),
            nonce: random().map_err(|_| LoginError::NoRandom)?,
        };
        let token = state.tokens.get(role).ok_or(LoginError::Wrong)?;
        let mut cookie = session.claim().to_vec();
        cookie.extend(hmac::sign(&token.signing_key(), &cookie).as_ref());
        Ok((session, BASE64_URL_SAFE_NO_PAD.encode(cookie)))
    }

    /// Returns the session of a cookie, if it is one of ours that has not ended.
    #[must_use]
    pub fn session(&self, cookie: &str, clock: SystemTime) -> Option<Session> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(cookie).ok()?;
        let (claim, tag) = bytes.split_at_checked(CLAIM_BYTES)?;
        let role = [Role::Viewer, Role::Operator]
            .into_iter()
            .find(|role| role.byte() == claim[0])?;
        let state = self.state();
        let key = state.tokens.get(role)?.signing_key();
        hmac::verify(&key, claim, tag).ok()?;
        let session = Session {
            role,
            expires: u64::from_be_bytes(claim[1..9].try_into().ok()?),
            nonce: claim[9..].try_into().ok()?,
        };
        let ended = state.ended.get(&role);
        let over = session.expires <= unix_secs(clock)
            || ended.is_some_and(|ended| ended.contains(&session));
        (!over).then_some(session)
    }

    /// Returns the token that requests of a session that change something carry; none if its login token is gone.
    #[must_use]
    pub fn csrf_token(&self, session: &Session) -> Option<String> {
        let state = self.state();
        let key = state.tokens.get(session.role)?.signing_key();
        let tag = hmac::sign(&key, &[b"csrf", &session.claim()[..]].concat());
        Some(BASE64_URL_SAFE_NO_PAD.encode(tag))
    }

    /// Returns true if a request of a session carries its token.
    #[must_use]
    pub(super) fn is_csrf_token(&self, session: &Session, presented: &str) -> bool {
        let expected = self.csrf_token(session).unwrap_or_default();
        let presented = hmac::sign(&self.compare_key, presented.as_bytes());
        let same = hmac::verify(&self.compare_key, expected.as_bytes(), presented.as_ref()).is_ok();
        same && !expected.is_empty()
    }

    /// Ends a session before its time. A daemon that restarts has forgotten that; the browser has not.
    pub fn end(&self, session: &Session, clock: SystemTime) {
        let mut state = self.state();
        let ended = state.ended.entry(session.role).or_default();
        ended.insert(session, unix_secs(clock));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn random<const N: usize>() -> Result<[u8; N], UserError> {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| UserError::new("random", "the system has no random numbers"))?;
    Ok(bytes)
}

fn unix_secs(clock: SystemTime) -> u64 {
    clock
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn tokens() -> LoginTokens {
        LoginTokens::default()
            .with(Role::Viewer, LoginToken::generate().unwrap())
            .with(Role::Operator, LoginToken::generate().unwrap())
    }

    fn now() -> (Instant, SystemTime) {
        (Instant::now(), SystemTime::now())
    }

    #[test]
    fn a_token_opens_sessions_of_its_role_until_they_expire() {
        let tokens = tokens();
        let auth = WebAuth::new(tokens.clone()).unwrap();
        let (at, clock) = now();
        for role in [Role::Viewer, Role::Operator] {
            let token = tokens.get(role).unwrap().as_str();
            assert_eq!(token.len(), 34, "{token}");
            let typed = token.to_uppercase().replace('-', " ");
            let (session, cookie) = auth.log_in(HERE, &typed, (at, clock)).unwrap();
            assert_eq!(session.role, role);
            assert_eq!(auth.session(&cookie, clock), Some(session));
            let last = clock + role.lifetime();
            assert_eq!(auth.session(&cookie, last), None, "it has expired");
        }
    }

    #[test]
    fn nobody_makes_a_session_or_another_role_of_one() {
        let tokens = tokens();
        let auth = WebAuth::new(tokens.clone()).unwrap();
        let viewer = tokens.get(Role::Viewer).unwrap().as_str();
        let (_, cookie) = auth.log_in(HERE, viewer, now()).unwrap();
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(&cookie).unwrap();
        for place in 0..bytes.len() {
            let mut forged = bytes.clone();
            forged[place] ^= 3;
            let forged = BASE64_URL_SAFE_NO_PAD.encode(forged);
            assert_eq!(auth.session(&forged, SystemTime::now()), None, "{place}");
        }
        for nothing in ["", "x", "AAAA", &cookie[1..]] {
            assert_eq!(auth.session(nothing, SystemTime::now()), None);
        }
    }

    #[test]
    fn a_new_token_ends_the_sessions_of_its_role_alone() {
        let tokens = tokens();
        let auth = WebAuth::new(tokens.clone()).unwrap();
        let open = |role| {
            let token = tokens.get(role).unwrap().as_str();
            auth.log_in(HERE, token, now()).unwrap().1
        };
        let (viewer, operator) = (open(Role::Viewer), open(Role::Operator));
        auth.set_tokens(
            tokens
                .clone()
                .with(Role::Viewer, LoginToken::generate().unwrap()),
        );
        assert_eq!(auth.session(&viewer, SystemTime::now()), None);
        let session = auth.session(&operator, SystemTime::now()).unwrap();
        auth.end(&session, SystemTime::now());
        assert_eq!(auth.session(&operator, SystemTime::now()), None);
    }

    /// From the 1,025th on no session was ended any more.
    #[test]
    fn many_ended_sessions_keep_none_alive() {
        let tokens = tokens();
        let auth = WebAuth::new(tokens.clone()).unwrap();
        let clock = SystemTime::now();
        let open = |role, clock| {
            let token = tokens.get(role).unwrap().as_str();
            auth.log_in(HERE, token, (Instant::now(), clock)).unwrap()
        };
        let (_, other) = open(Role::Viewer, clock);
        let (_, operator) = open(Role::Operator, clock);
        let later = clock + Duration::from_secs(1);
        for number in 0..=MAX_ENDED_SESSIONS {
            let (session, cookie) = open(Role::Viewer, clock);
            assert_eq!(auth.session(&cookie, clock), Some(session), "{number}");
            auth.end(&session, clock);
            assert_eq!(auth.session(&cookie, clock), None, "{number}");
            assert_eq!(auth.session(&cookie, later), None, "{number}");
            let is_over = auth.session(&other, clock).is_none();
            assert_eq!(is_over, number == MAX_ENDED_SESSIONS, "{number}");
        }
        // A new one begins, and its end counts as well.
        let (session, cookie) = open(Role::Viewer, later);
        assert_eq!(auth.session(&cookie, later), Some(session));
        auth.end(&session, later);
        assert_eq!(auth.session(&cookie, later), None);
        let session = auth
            .session(&operator, clock)
            .expect("viewers end no operator's");
        auth.end(&session, clock);
        assert_eq!(auth.session(&operator, clock), None);
    }

    #[test]
    fn a_csrf_token_is_for_one_session() {
        let tokens = tokens();
        let auth = WebAuth::new(tokens.clone()).unwrap();
        let open = || {
            let token = tokens.get(Role::Operator).unwrap().as_str();
            auth.log_in(HERE, token, now()).unwrap().0
        };
        let (one, other) = (open(), open());
        let token = auth.csrf_token(&one).unwrap();
        assert!(auth.is_csrf_token(&one, &token));
        assert!(!auth.is_csrf_token(&other, &token) && !auth.is_csrf_token(&one, ""));
    }

    #[test]
    fn without_tokens_nothing_opens() {
        let auth = WebAuth::new(LoginTokens::default()).unwrap();
        let refused = auth.log_in(HERE, "", now()).unwrap_err();
        assert_eq!(refused, LoginError::Wrong);
    }

    #[test]
    fn wrong_tokens_make_even_the_right_one_wait() {
        let tokens = tokens();
        let auth = WebAuth::new(tokens.clone()).unwrap();
        let (at, clock) = now();
        let wrong = loop {
            match auth.log_in(HERE, "guess", (at, clock)) {
                Err(LoginError::TooMany(wait)) => break wait,
                refused => assert_eq!(refused, Err(LoginError::Wrong)),
            }
        };
        let token = tokens.get(Role::Viewer).unwrap().as_str();
        auth.log_in(HERE, token, (at, clock)).unwrap_err();
        auth.log_in("2001:db8::1".parse().unwrap(), token, (at, clock))
            .unwrap();
        auth.log_in(HERE, token, (at + wrong, clock)).unwrap();
    }
}
