//! A page's listener. It runs on a thread of its own, without capabilities: neither TLS nor a browser delays the daemon's
//! loop, and what strangers send meets no privileges.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::mpsc;

use axum::Router;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use super::access::WebAccess;
use super::connections::serve;
use super::guard::{Guard, guarded};
use super::tls::TlsIdentity;
use crate::config::WebConfig;
use crate::privileges::{self, Files};
use crate::user_error::UserError;

/// A page with its socket and certificate, which nobody serves yet.
pub struct BoundPage {
    listener: TcpListener,
    identity: Option<TlsIdentity>,
    guard: Guard,
}

/// The thread that serves a page.
pub struct WebThread {
    /// Dropped to end it.
    end: oneshot::Sender<()>,
    /// Completes when its sockets are closed.
    ended: oneshot::Receiver<()>,
}

impl BoundPage {
    /// Takes the address and the certificate that the configuration names.
    ///
    /// # Errors
    /// The address is not this machine's or is in use, or the certificate cannot be read or made.
    pub fn bind(
        access: &WebAccess,
        config: &WebConfig,
        listen: SocketAddr,
    ) -> Result<BoundPage, UserError> {
        let identity = access.identity(config, listen)?;
        let bind = || {
            let listener = TcpListener::bind(listen)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = bind()
            .map_err(|error| UserError::io(format!("[web] listen = \"{listen}\""), &error))?;
        let fingerprint = identity
            .as_ref()
            .map(|identity| identity.fingerprint.clone());
        tracing::info!(%listen, tls = fingerprint.is_some(), "page for browsers");
        access.set_fingerprint(fingerprint);
        let guard = Guard {
            auth: access.auth.clone(),
            names: config.names.clone(),
            command: access.command,
        };
        Ok(BoundPage {
            listener,
            identity,
            guard,
        })
    }

    /// Serves these routes behind the guard.
    ///
    /// # Errors
    /// The system gives no thread, or one that keeps its privileges.
    pub fn serve(self, routes: Router) -> Result<WebThread, UserError> {
        let failed = |error| UserError::io("serve the page", &error);
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let (end, mut asked_to_end) = oneshot::channel::<()>();
        let (over, ended) = oneshot::channel::<()>();
        let (tell, begun) = mpsc::sync_channel(1);
        let work = move || {
            let begin = || {
                confine()?;
                let _guard = runtime.enter();
                tokio::net::TcpListener::from_std(self.listener).map_err(failed)
            };
            let listener = match begin() {
                Ok(listener) => listener,
                Err(failure) => {
                    let _ = tell.send(Err(failure));
                    return;
                }
            };
            let _ = tell.send(Ok(()));
            let router = guarded(routes, self.guard);
            runtime.block_on(async {
                tokio::select! {
                    () = serve(listener, self.identity, router) => {}
                    _ = &mut asked_to_end => {}
                }
            });
            // A name lookup under way is not waited for.
            runtime.shutdown_background();
            drop(over);
        };
        let thread = std::thread::Builder::new().name("web".to_owned());
        thread.spawn(work).map_err(failed)?;
        let died = || UserError::new("web", "the page's thread ended at once");
        begun.recv().map_err(|_| died())??;
        Ok(WebThread { end, ended })
    }
}

impl WebThread {
    /// Ends it; its address is free when this returns.
    pub async fn stop(self) {
        drop(self.end);
        // It says nothing when it ends.
        let _ = self.ended.await;
    }
}

/// Takes from this thread what it has no use for, because it reads what strangers send: all capabilities, and all files but
/// those of the system, which a name lookup reads.
fn confine() -> Result<(), UserError> {
    privileges::keep_capabilities(&[], &[])?;
    // A resolver of the system's may keep its file elsewhere.
    let resolver = std::fs::canonicalize("/etc/resolv.conf").ok();
    let folder = resolver.as_deref().and_then(Path::parent);
    privileges::keep_files(Files {
        read: folder.as_slice(),
        ..Files::default()
    })?;
    Ok(())
}
