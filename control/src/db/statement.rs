//! Statements that are not kept on the server. Behind a transaction pooler, the next
//! transaction may use another server connection, and other clients use this one; for
//! the same reason, statements run within transactions only.

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArguments, PgQueryResult, PgRow, PgStatement, PgTypeInfo, Postgres};
use sqlx::query::{Map, Query, QueryScalar};
use sqlx::{Describe, Either, Execute, Executor, FromRow, PgConnection, SqlStr};

/// Like `sqlx::query!`, for an unnamed statement.
macro_rules! query {
    ($($statement:tt)*) => { $crate::db::statement::Unnamed(sqlx::query!($($statement)*)) };
}

/// Like `sqlx::query_as!`, for an unnamed statement.
macro_rules! query_as {
    ($($statement:tt)*) => { $crate::db::statement::Unnamed(sqlx::query_as!($($statement)*)) };
}

/// Like `sqlx::query_scalar!`, for an unnamed statement.
macro_rules! query_scalar {
    ($($statement:tt)*) => { $crate::db::statement::Unnamed(sqlx::query_scalar!($($statement)*)) };
}

/// A checked query, run as an unnamed statement, or an executor of such.
#[derive(Debug)]
pub(crate) struct Unnamed<T>(pub(crate) T);

/// The methods of both kinds of queries with results, whose rows are `$row`.
macro_rules! fetch {
    ($row:ty) => {
        pub(crate) async fn fetch_one(
            self,
            connection: &mut PgConnection,
        ) -> Result<$row, sqlx::Error> {
            self.0.fetch_one(Unnamed(connection)).await
        }

        pub(crate) async fn fetch_optional(
            self,
            connection: &mut PgConnection,
        ) -> Result<Option<$row>, sqlx::Error> {
            self.0.fetch_optional(Unnamed(connection)).await
        }

        pub(crate) async fn fetch_all(
            self,
            connection: &mut PgConnection,
        ) -> Result<Vec<$row>, sqlx::Error> {
            self.0.fetch_all(Unnamed(connection)).await
        }
    };
}

impl<F, O> Unnamed<Map<'_, Postgres, F, PgArguments>>
where
    F: FnMut(PgRow) -> Result<O, sqlx::Error> + Send,
    O: Send + Unpin,
{
    fetch!(O);
}

impl<O> Unnamed<QueryScalar<'_, Postgres, O, PgArguments>>
where
    O: Send + Unpin,
    (O,): for<'r> FromRow<'r, PgRow> + Send + Unpin,
{
    fetch!(O);
}

impl Unnamed<Query<'_, Postgres, PgArguments>> {
    pub(crate) async fn execute(
        self,
        connection: &mut PgConnection,
    ) -> Result<PgQueryResult, sqlx::Error> {
        self.0.persistent(false).execute(connection).await
    }
}

impl<'q, Q: Execute<'q, Postgres>> Execute<'q, Postgres> for Unnamed<Q> {
    fn sql(self) -> SqlStr {
        self.0.sql()
    }

    fn statement(&self) -> Option<&PgStatement> {
        self.0.statement()
    }

    fn take_arguments(&mut self) -> Result<Option<PgArguments>, BoxDynError> {
        self.0.take_arguments()
    }

    fn persistent(&self) -> bool {
        false
    }
}

impl<'c> Executor<'c> for Unnamed<&'c mut PgConnection> {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        self.0.fetch_many(Unnamed(query))
    }

    fn fetch_optional<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        self.0.fetch_optional(Unnamed(query))
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        'c: 'e,
    {
        self.0.prepare_with(sql, parameters)
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Postgres>, sqlx::Error>>
    where
        'c: 'e,
    {
        self.0.describe(sql)
    }
}
