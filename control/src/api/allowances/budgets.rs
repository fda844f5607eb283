use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use fastllm_contract::{Budget, BudgetState, Timestamp, WindowLength};
use fastllm_engine::Window;
use fastllm_engine::window::time_zone_name;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use time::OffsetDateTime;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{AllowanceParams, SubjectView, change_of, detail, found};
use crate::api::framework::{
    ApiError, Caller, Json, Permission, Query, checks, page, require_permission,
};
use crate::app::AppState;
use crate::clock;
use crate::db::budgets::BudgetFields;
use crate::db::limits_state::present;
use crate::db::spending::{InFlight, WindowId};
use crate::db::subject::Allowance;
use crate::db::{DbError, SubjectId, budgets, spending};

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(require_permission(Permission::UsageRead, routes!(list)))
}

/// The length of a budget's window: without a time zone, successive windows of 1, 7 or
/// 30 days of 24 hours; with one, calendar days, weeks from Monday, or months.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BudgetWindow {
    Daily,
    Weekly,
    Monthly,
}

impl From<BudgetWindow> for WindowLength {
    fn from(window: BudgetWindow) -> Self {
        match window {
            BudgetWindow::Daily => Self::Daily,
            BudgetWindow::Weekly => Self::Weekly,
            BudgetWindow::Monthly => Self::Monthly,
        }
    }
}

/// The settings of a budget, for the audit log.
#[derive(Serialize)]
struct BudgetSettings {
    tokens_total: Option<u64>,
    cost_total_micros: Option<u64>,
    window: WindowLength,
    time_zone: Option<String>,
}

impl From<Budget> for BudgetSettings {
    fn from(budget: Budget) -> Self {
        let Budget {
            id: _,
            tokens_total,
            cost_total_micros,
            window,
            time_zone,
            window_start: _,
        } = budget;
        Self {
            tokens_total: tokens_total.map(|tokens| tokens.0),
            cost_total_micros: cost_total_micros.map(|cost| cost.0),
            window,
            time_zone,
        }
    }
}

/// A budget, and the amounts used in its current window.
#[derive(Serialize, ToSchema)]
pub(crate) struct BudgetView {
    /// `null` is unlimited.
    tokens_total: Option<u64>,
    /// The amount used by the stored usage events.
    tokens_used: u64,
    /// The amount reserved for requests in flight, or used but not stored yet.
    tokens_reserved: u64,
    /// In micro-units; `null` is unlimited.
    cost_total_micros: Option<u64>,
    /// The amount used by the stored usage events.
    cost_used_micros: u64,
    /// The amount reserved for requests in flight, or used but not stored yet.
    cost_reserved_micros: u64,
    #[schema(value_type = BudgetWindow)]
    window: WindowLength,
    /// The start of the current window.
    #[serde(with = "time::serde::rfc3339::option")]
    window_start: Option<OffsetDateTime>,
    /// The end of the current window.
    #[serde(with = "time::serde::rfc3339::option")]
    window_end: Option<OffsetDateTime>,
    /// `null` means windows of fixed length.
    time_zone: Option<String>,
}

/// The budget of a subject.
#[derive(Serialize, ToSchema)]
struct SubjectBudget {
    id: u64,
    #[serde(flatten)]
    subject: SubjectView,
    #[serde(flatten)]
    budget: BudgetView,
}

/// The amounts used of some budgets in their current windows.
struct BudgetSpending {
    now: Timestamp,
    stored: BTreeMap<u64, BudgetState>,
    in_flight: BTreeMap<u64, InFlight>,
}

impl BudgetSpending {
    async fn read<'a>(
        connection: &mut PgConnection,
        budgets: impl Iterator<Item = &'a Budget>,
    ) -> Result<Self, DbError> {
        let now = clock::timestamp(clock::now());
        let windows: Vec<WindowId> = budgets.filter_map(|budget| present(budget, now)).collect();
        let (stored, in_flight) = spending::amounts(connection, &windows).await?;
        Ok(Self {
            now,
            stored: stored.into_iter().map(|row| (row.budget.0, row)).collect(),
            in_flight: in_flight
                .into_iter()
                .map(|row| (row.budget.unsigned_abs(), row))
                .collect(),
        })
    }

    fn view(&self, budget: Budget) -> BudgetView {
        let span = Window::of(&budget).ok().map(|window| window.at(self.now));
        let stored = self.stored.get(&budget.id.0);
        let in_flight = self.in_flight.get(&budget.id.0);
        let BudgetSettings {
            tokens_total,
            cost_total_micros,
            window,
            time_zone,
        } = budget.into();
        BudgetView {
            tokens_total,
            tokens_used: stored.map_or(0, |row| row.tokens_used.0),
            tokens_reserved: in_flight.map_or(0, |row| row.tokens.unsigned_abs()),
            cost_total_micros,
            cost_used_micros: stored.map_or(0, |row| row.cost_used_micros.0),
            cost_reserved_micros: in_flight.map_or(0, |row| row.cost_micros.unsigned_abs()),
            window,
            window_start: span.and_then(|span| clock::moment(span.start)),
            window_end: span.and_then(|span| clock::moment(span.end)),
            time_zone,
        }
    }
}

/// The budget to set, with at least one total.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewBudget {
    /// Tokens of prompts and completions.
    #[schema(minimum = 0)]
    tokens_total: Option<i64>,
    /// In micro-units.
    #[schema(minimum = 0)]
    cost_total_micros: Option<i64>,
    window: BudgetWindow,
    /// An IANA time zone, such as `Europe/Berlin`.
    time_zone: Option<String>,
}

/// List budgets
///
/// Lists the budgets of principals, keys and teams, and of principals' use of
/// single models, ordered by ID, with the amounts used and reserved in the
/// current window.
#[utoipa::path(get, path = "/admin/budgets", tag = "budgets", params(AllowanceParams),
    responses((status = 200, body = Vec<SubjectBudget>, description = "The budgets.")))]
async fn list(
    State(app): State<AppState>,
    uri: Uri,
    Query(params): Query<AllowanceParams>,
) -> Result<Response, ApiError> {
    let page = params.page()?;
    let mut connection = app.db.admin.begin_reading().await?;
    let rows = budgets::list(&mut connection, params.principal_id, page).await?;
    let budgets = rows.iter().map(|row| &row.value);
    let spending = BudgetSpending::read(&mut connection, budgets).await?;
    let view = |row: Allowance<Budget>| {
        let Allowance { id, subject, value } = row;
        let held = SubjectBudget {
            id: value.id.0,
            subject: subject.into(),
            budget: spending.view(value),
        };
        (id, held)
    };
    Ok(page::respond(
        &uri,
        page,
        "after",
        rows.into_iter().map(view),
    ))
}

/// Responds with a subject's budget.
pub(crate) async fn get_of(
    app: AppState,
    subject: SubjectId,
) -> Result<Json<BudgetView>, ApiError> {
    let mut connection = app.db.admin.begin_reading().await?;
    found(&mut connection, subject).await?;
    let budget = budgets::get(&mut connection, subject)
        .await?
        .ok_or_else(|| ApiError::not_found("budget"))?;
    let spending = BudgetSpending::read(&mut connection, [&budget].into_iter()).await?;
    Ok(Json(spending.view(budget)))
}

/// Sets a subject's budget. Recorded spending is kept.
pub(crate) async fn put_of(
    caller: Caller,
    subject: SubjectId,
    Json(new): Json<NewBudget>,
) -> Result<StatusCode, ApiError> {
    let NewBudget {
        tokens_total,
        cost_total_micros,
        window,
        time_zone,
    } = new;
    let total = |field, value: Option<i64>| {
        value
            .map(|value| checks::not_negative(field, value))
            .transpose()
    };
    let time_zone = time_zone
        .map(|name| {
            time_zone_name(&name)
                .map_err(|error| ApiError::invalid("time_zone", format!("time_zone: {error}")))
        })
        .transpose()?;
    let fields = BudgetFields {
        tokens_total: total("tokens_total", tokens_total)?,
        cost_total_micros: total("cost_total_micros", cost_total_micros)?,
        window: window.into(),
        time_zone: time_zone.as_deref(),
    };
    if fields.tokens_total.or(fields.cost_total_micros).is_none() {
        return Err(ApiError::invalid(
            "tokens_total",
            "give at least one of tokens_total and cost_total_micros",
        ));
    }
    let mut change = change_of(caller, subject).await?;
    let connection = change.connection();
    let old = budgets::get(connection, subject).await?;
    budgets::put(connection, subject, &fields).await?;
    let new = budgets::get(connection, subject).await?;
    if let (Some(old), Some(new)) = (&old, &new) {
        keep_spending(connection, old, new).await?;
    }
    let settings = |budget: Option<Budget>| budget.map(BudgetSettings::from);
    let detail = detail(subject, "budget.set").changed(&settings(old), &settings(new));
    change.commit(detail).await
}

/// If the windows have changed, what was spent within the current one is carried over,
/// as far as the old windows show it.
async fn keep_spending(
    connection: &mut PgConnection,
    old: &Budget,
    new: &Budget,
) -> Result<(), DbError> {
    if (old.window, &old.time_zone) == (new.window, &new.time_zone) {
        return Ok(());
    }
    let span = Window::of(new)
        .ok()
        .map(|window| window.at(clock::timestamp(clock::now())));
    let window = span.and_then(|span| {
        let window = WindowId::new(new.id, span.start)?;
        Some((window, clock::moment(span.end)?))
    });
    match window {
        Some((window, end)) => spending::merge(connection, window, end).await,
        None => Ok(()),
    }
}

/// Deletes a subject's budget, if there is one.
pub(crate) async fn delete_of(caller: Caller, subject: SubjectId) -> Result<StatusCode, ApiError> {
    let mut change = change_of(caller, subject).await?;
    let connection = change.connection();
    let old = budgets::get(connection, subject).await?;
    budgets::delete(connection, subject).await?;
    let detail = detail(subject, "budget.delete").deleted(&old.map(BudgetSettings::from));
    change.commit(detail).await
}
