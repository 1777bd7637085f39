//! Files of pages, compiled into the program.

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;

/// A file of a page: path, type, contents.
pub type PageFile = (&'static str, &'static str, &'static str);

/// Type of HTML.
pub const HTML: &str = "text/html; charset=utf-8";
/// Type of scripts.
pub const JS: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Files that every page has.
const SHARED: [PageFile; 7] = [
    ("/page.css", CSS, include_str!("../../web/page.css")),
    ("/icon.svg", SVG, include_str!("../../web/icon.svg")),
    ("/dom.js", JS, include_str!("../../web/dom.js")),
    ("/format.js", JS, include_str!("../../web/format.js")),
    ("/events.js", JS, include_str!("../../web/events.js")),
    ("/chart.js", JS, include_str!("../../web/chart.js")),
    ("/session.js", JS, include_str!("../../web/session.js")),
];

/// Returns routes to a page's own files and to those that every page has.
pub fn page_files(own: &[PageFile]) -> Router {
    let files = SHARED.iter().chain(own);
    files.fold(Router::new(), |router, &(path, kind, text)| {
        router.route(
            path,
            get(move || async move { ([(CONTENT_TYPE, kind)], text) }),
        )
    })
}
