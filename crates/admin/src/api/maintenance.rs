//! API paths that begin and end maintenance of frontends, routes and backends (mode http).

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::response::Response;
use convey_api::{ChangeReport, MaintenanceChange};
use convey_control::{Done, Requested};
use convey_model::{HttpTarget, Maintenance, MaintenancePage, Prefix};
use hyper::header::HeaderValue;

use super::super::Requester;
use super::{ApiContext, Failure, RequestBody, in_body, in_path, line, may_change, send_request};

/// `Content-Type` of a page without one.
const TEXT: &str = "text/plain; charset=utf-8";

pub(super) async fn start_frontend(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
    name: Result<Path<String>, PathRejection>,
    body: RequestBody,
) -> Result<Response, Failure> {
    start(&answers, who, HttpTarget::Frontend(in_path(name)?), &body).await
}

pub(super) async fn start_route(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
    names: Result<Path<(String, String)>, PathRejection>,
    body: RequestBody,
) -> Result<Response, Failure> {
    let (frontend, route) = in_path(names)?;
    start(&answers, who, HttpTarget::Route { frontend, route }, &body).await
}

pub(super) async fn start_backend(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
    name: Result<Path<String>, PathRejection>,
    body: RequestBody,
) -> Result<Response, Failure> {
    start(&answers, who, HttpTarget::Backend(in_path(name)?), &body).await
}

pub(super) async fn end_frontend(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Failure> {
    end(&answers, who, HttpTarget::Frontend(in_path(name)?)).await
}

pub(super) async fn end_route(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
    names: Result<Path<(String, String)>, PathRejection>,
) -> Result<Response, Failure> {
    let (frontend, route) = in_path(names)?;
    end(&answers, who, HttpTarget::Route { frontend, route }).await
}

pub(super) async fn end_backend(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Failure> {
    end(&answers, who, HttpTarget::Backend(in_path(name)?)).await
}

async fn start(
    answers: &ApiContext,
    who: Requester,
    target: HttpTarget,
    body: &RequestBody,
) -> Result<Response, Failure> {
    may_change(answers, &who)?;
    let maintenance = model(in_body(body)?).map_err(Failure::Bad)?;
    finish(answers, who, Requested::SetMaintenance(target, Arc::new(maintenance))).await
}

async fn end(answers: &ApiContext, who: Requester, target: HttpTarget) -> Result<Response, Failure> {
    finish(answers, who, Requested::EndMaintenance(target)).await
}

async fn finish(answers: &ApiContext, who: Requester, what: Requested) -> Result<Response, Failure> {
    let done = send_request(answers, who, what).await?;
    let changed = matches!(done, Done::Set { has_changed: true });
    Ok(line(&ChangeReport { changed, warnings: Vec::new() }))
}

fn model(change: MaintenanceChange) -> Result<Maintenance, String> {
    let MaintenanceChange { status, retry_after, page, content_type, allow } = change;
    let status = status.unwrap_or(Maintenance::STATUS);
    if !(400..=599).contains(&status) {
        return Err(format!("status: found {status}, allowed: 400 to 599"));
    }
    let (size, most) = (page.as_ref().map_or(0, String::len), Maintenance::MAX_PAGE);
    if size > most {
        return Err(format!("page: found {size} bytes, allowed: at most {most}"));
    }
    if page.as_ref().is_some_and(|page| page.trim().is_empty()) {
        return Err("page: is empty; leave it out to get the default page".to_owned());
    }
    let (retry_after, most) = (retry_after.unwrap_or(Maintenance::RETRY_AFTER), Maintenance::MAX_RETRY_AFTER);
    if retry_after > most {
        return Err(format!("retry_after: found {retry_after}, allowed: up to {most} seconds"));
    }
    let content_type = content_type.unwrap_or_else(|| TEXT.to_owned());
    if content_type.is_empty()
        || HeaderValue::from_str(&content_type).is_err()
        || content_type.trim() != content_type
    {
        return Err(format!("content_type: found {content_type:?}, expected a type such as {TEXT}"));
    }
    let (count, most) = (allow.len(), Maintenance::MAX_NETWORKS);
    if count > most {
        return Err(format!("allow: found {count} networks, allowed: at most {most}"));
    }
    let network = |text: &String| {
        text.parse::<Prefix>().map_err(|()| {
            let meant = Prefix::around(text);
            let meant = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
            format!("allow: found {text:?}, expected IP or IP/LEN such as 192.0.2.0/24{meant}")
        })
    };
    Ok(Maintenance {
        status,
        retry_after,
        page: page.map(|page| MaintenancePage { content_type, body: page.into() }),
        allow: allow.iter().map(network).collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maintenance_without_values_has_the_defaults() {
        assert_eq!(model(MaintenanceChange::default()), Ok(Maintenance::default()));
    }

    #[test]
    fn wrong_value_of_maintenance_is_an_error_with_its_key() {
        let none = MaintenanceChange::default;
        let page = |bytes| Some("a".repeat(bytes));
        for (change, why) in [
            (MaintenanceChange { status: Some(200), ..none() }, "status: found 200, allowed: 400 to 599"),
            (
                MaintenanceChange { page: page(65_537), ..none() },
                "page: found 65537 bytes, allowed: at most 65536",
            ),
            (MaintenanceChange { content_type: Some("a\r\nb: c".into()), ..none() }, "content_type: found "),
            (
                MaintenanceChange { allow: vec!["10.0.0.0/33".into()], ..none() },
                "allow: found \"10.0.0.0/33\"",
            ),
            (
                MaintenanceChange { allow: vec!["10.0.0.5/8".into()], ..none() },
                "allow: found \"10.0.0.5/8\", expected IP or IP/LEN such as 192.0.2.0/24; did you mean 10.0.0.0/8?",
            ),
            (MaintenanceChange { page: Some(" ".into()), ..none() }, "page: is empty"),
            (
                MaintenanceChange { retry_after: Some(31_536_001), ..none() },
                "retry_after: found 31536001, allowed: up to 31536000 seconds",
            ),
            (MaintenanceChange { allow: vec!["::1".into(); 101], ..none() }, "allow: found 101 networks"),
        ] {
            let told = model(change).unwrap_err();
            assert!(told.starts_with(why), "{told}");
        }
        assert!(model(MaintenanceChange { page: page(65_536), ..none() }).is_ok());
    }
}
