"""A page for browsers on a TCP port: who may see it and who may act, by login tokens and sessions.

The same promises as those of `crates/braid-host/src/web`, for programs in Python, and the same files (`shared` is
that crate's folder). It knows nothing of what the page shows: an application hands it files and a function that
answers requests with a session. Without a session it answers with the login form or an error, and nothing else.

- GET changes nothing. Everything else needs the session's CSRF token, so that another site's page that the same
  browser shows cannot act in its name.
- A request names this machine by its address, `localhost` or a configured name. A foreign name that resolves here
  (DNS rebinding) would make another site's scripts count as ours.
- A token crosses a network only within TLS.
- Sessions are signed by their role's login token and kept nowhere: they outlive a restart, and a new token ends
  them all.
"""
