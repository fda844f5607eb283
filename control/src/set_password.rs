use crate::config::SetPassword;
use crate::crypto::{check_policy, hash_now};
use crate::db::principals::PrincipalRow;
use crate::db::{Actor, AuditEntry, Change, Db, DbError, migrate, principals, roles};
use crate::{Error, name};

/// The outcome of `set-password`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PasswordOutcome {
    /// The password was set.
    Set,
    /// An existing password was kept.
    Kept,
}

/// Migrates the database and sets the password of a user. Assigns the role `admin`
/// unless another role of the user allows configuration changes.
///
/// # Errors
/// A password that violates the policy; an unavailable or incompatible database.
pub async fn set_password(arguments: &SetPassword) -> Result<PasswordOutcome, Error> {
    let SetPassword {
        name,
        password,
        create_only,
        database,
    } = arguments;
    name::check(name).map_err(|error| Error::Config(format!("--name {error}")))?;
    let db = Db::new(database.options()?, 1);
    migrate(&db).await?;
    let actor = Actor {
        id: None,
        name: "set-password".to_owned(),
        action: "COMMAND".to_owned(),
        target: "set-password".to_owned(),
        source: None,
    };
    let mut change = Change::begin(&db, actor).await?;
    let principal = find_or_create(&mut change, name).await?;
    if *create_only && principal.has_password {
        return Ok(PasswordOutcome::Kept);
    }
    check_policy(password).map_err(|error| Error::Password(error.into()))?;
    let hash = hash_now(password)?;
    let entry = apply(&mut change, &principal, &hash).await?;
    change.commit(entry).await?;
    db.close().await;
    Ok(PasswordOutcome::Set)
}

async fn find_or_create(change: &mut Change, name: &str) -> Result<PrincipalRow, DbError> {
    let connection = change.connection();
    match principals::find_by_name(connection, name).await {
        Err(DbError::NotFound) => {
            let id = principals::insert(connection, name, "user", None, None).await?;
            principals::get(connection, id).await
        }
        other => other,
    }
}

async fn apply(
    change: &mut Change,
    principal: &PrincipalRow,
    hash: &str,
) -> Result<AuditEntry, DbError> {
    let connection = change.connection();
    principals::set_password(connection, principal.id, hash).await?;
    let granted = !principals::can_configure(connection, principal.id).await?;
    if granted {
        let admin = roles::find(connection, "admin").await?;
        principals::add_role(connection, principal.id, admin.id).await?;
    }
    let mut changes = serde_json::json!({
        "name": { "after": principal.name },
        "password": "set",
    });
    if granted {
        changes["role"] = serde_json::json!({ "after": "admin" });
    }
    let detail = serde_json::json!({
        "operation": "principal.password",
        "id": principal.id,
        "changes": changes,
    });
    Ok(AuditEntry { detail })
}
