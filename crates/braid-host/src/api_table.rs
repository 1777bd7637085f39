//! The table of a local API's requests: each has its handler, its audience and the types of its data beside it.
//!
//! The router of the socket, that of the page for browsers, and the OpenAPI document are made from the table, so no request can be
//! missing in one of them.

#[cfg(feature = "openapi")]
mod document;

use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodRouter, delete, get, post};
#[cfg(feature = "openapi")]
use schemars::{Schema, SchemaGenerator};

#[cfg(feature = "openapi")]
pub use document::document;

/// Path of the document.
pub const DOCUMENT_PATH: &str = "/v1/openapi.json";

/// Name and purpose of an API.
#[derive(Clone, Copy, Debug)]
pub struct ApiInfo {
    /// Its title.
    pub title: &'static str,
    /// Its place, and those who may use it.
    pub description: &'static str,
}

/// Those who may send a request, besides the users of the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Nobody.
    Socket,
    /// Whoever is logged in to the page. The guard lets viewers send GET alone.
    Page,
}

/// Returns the schema of a type, and notes the schemas that it refers to.
#[cfg(feature = "openapi")]
type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// A request of an API.
pub struct ApiRequest<S> {
    path: &'static str,
    audience: Audience,
    handler: MethodRouter<S>,
    #[cfg(feature = "openapi")]
    described: Described,
}

/// The parts of a request that the document alone has.
#[cfg(feature = "openapi")]
#[derive(Clone)]
struct Described {
    method: &'static str,
    summary: &'static str,
    question: Option<SchemaOf>,
    body: Option<SchemaOf>,
    answer: Option<SchemaOf>,
    /// Type of an answer that is no JSON.
    media_type: Option<&'static str>,
}

#[cfg_attr(
    not(feature = "openapi"),
    allow(unused_mut, unused_variables, reason = "the document alone has them")
)]
impl<S: Clone + Send + Sync + 'static> ApiRequest<S> {
    /// A request that shows something.
    pub fn get<H, T>(path: &'static str, summary: &'static str, handler: H) -> ApiRequest<S>
    where
        H: Handler<T, S>,
        T: 'static,
    {
        ApiRequest::new("get", path, summary, get(handler))
    }

    /// A request that changes something.
    pub fn post<H, T>(path: &'static str, summary: &'static str, handler: H) -> ApiRequest<S>
    where
        H: Handler<T, S>,
        T: 'static,
    {
        ApiRequest::new("post", path, summary, post(handler))
    }

    /// A request that ends something.
    pub fn delete<H, T>(path: &'static str, summary: &'static str, handler: H) -> ApiRequest<S>
    where
        H: Handler<T, S>,
        T: 'static,
    {
        ApiRequest::new("delete", path, summary, delete(handler))
    }

    fn new(
        method: &'static str,
        path: &'static str,
        summary: &'static str,
        handler: MethodRouter<S>,
    ) -> ApiRequest<S> {
        ApiRequest {
            path,
            audience: Audience::Socket,
            handler,
            #[cfg(feature = "openapi")]
            described: Described {
                method,
                summary,
                question: None,
                body: None,
                answer: None,
                media_type: None,
            },
        }
    }

    /// Lets the page send it too.
    #[must_use]
    pub fn on_page(self) -> ApiRequest<S> {
        ApiRequest {
            audience: Audience::Page,
            ..self
        }
    }

    /// Names the type of its query string.
    #[must_use]
    pub fn asks<T: schemars::JsonSchema>(mut self) -> ApiRequest<S> {
        #[cfg(feature = "openapi")]
        {
            self.described.question = Some(T::json_schema);
        }
        self
    }

    /// Names the type of its body.
    #[must_use]
    pub fn takes<T: schemars::JsonSchema>(mut self) -> ApiRequest<S> {
        #[cfg(feature = "openapi")]
        {
            self.described.body = Some(|schemas| schemas.subschema_for::<T>());
        }
        self
    }

    /// Names the type of its answer.
    #[must_use]
    pub fn answers<T: schemars::JsonSchema>(mut self) -> ApiRequest<S> {
        #[cfg(feature = "openapi")]
        {
            self.described.answer = Some(|schemas| schemas.subschema_for::<T>());
        }
        self
    }

    /// Names the media type of an answer that is no JSON.
    #[must_use]
    pub fn answers_as(mut self, media_type: &'static str) -> ApiRequest<S> {
        #[cfg(feature = "openapi")]
        {
            self.described.media_type = Some(media_type);
        }
        self
    }
}

/// Returns a router of those requests that an audience may send: all of them on the socket, those of the page on the page; and
/// of the one for the document, which is made each time that it is asked for.
pub fn router<S: Clone + Send + Sync + 'static>(
    info: ApiInfo,
    table: fn() -> Vec<ApiRequest<S>>,
    audience: Audience,
) -> Router<S> {
    let admitted = table()
        .into_iter()
        .filter(|request| audience == Audience::Socket || request.audience == Audience::Page);
    let router = admitted.fold(Router::new(), |router, request| {
        router.route(request.path, request.handler)
    });
    #[cfg(feature = "openapi")]
    return router.route(
        DOCUMENT_PATH,
        get(move || async move { axum::Json(document(info, &table())) }),
    );
    #[cfg(not(feature = "openapi"))]
    {
        let ApiInfo { .. } = info;
        router
    }
}
