-- The audit log and usage. Rows outlive the principals, keys and models that they
-- name, so there are no foreign keys.

CREATE TABLE sessions (
    token_hash bytea PRIMARY KEY CHECK (octet_length(token_hash) = 32),
    principal_id bigint NOT NULL REFERENCES principals ON DELETE CASCADE,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL
);
CREATE INDEX sessions_by_principal ON sessions (principal_id);
CREATE INDEX sessions_by_expiry ON sessions (expires_at);

CREATE TABLE audit_events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- NULL: a command on the control plane's host.
    actor_id bigint,
    actor_name text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    detail jsonb NOT NULL,
    source text,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX audit_events_by_actor ON audit_events (actor_id, id);
CREATE INDEX audit_events_by_time ON audit_events (at);

-- Names of deleted principals and models, so that late usage events are stored and
-- events of names that never existed are dropped. A name belongs to a model until
-- deleted_at.
CREATE TABLE former_principals (
    id bigint PRIMARY KEY,
    name text NOT NULL,
    deleted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE former_models (
    id bigint PRIMARY KEY,
    name text NOT NULL,
    deleted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX former_models_by_name ON former_models (name, id);

CREATE FUNCTION remember_principals() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO former_principals (id, name) SELECT id, name FROM deleted ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER principals_remember AFTER DELETE ON principals
    REFERENCING OLD TABLE AS deleted FOR EACH STATEMENT EXECUTE FUNCTION remember_principals();

CREATE FUNCTION remember_models() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO former_models (id, name) SELECT id, name FROM deleted ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER models_remember AFTER DELETE ON models
    REFERENCING OLD TABLE AS deleted FOR EACH STATEMENT EXECUTE FUNCTION remember_models();

CREATE TABLE usage_events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    replica text NOT NULL,
    principal_id bigint NOT NULL,
    principal_name text NOT NULL,
    key_id bigint,
    model_id bigint NOT NULL,
    model text NOT NULL,
    requested_model text,
    prompt_tokens bigint NOT NULL CHECK (prompt_tokens >= 0),
    completion_tokens bigint NOT NULL CHECK (completion_tokens >= 0),
    usage_reported boolean NOT NULL,
    refusal text,
    duration_ms bigint,
    ttft_ms bigint,
    status integer,
    -- NULL: unknown (no price, or no counts).
    cost_micros bigint CHECK (cost_micros >= 0)
);
CREATE INDEX usage_events_by_time ON usage_events (at);
CREATE INDEX usage_events_by_principal ON usage_events (principal_id, id);
CREATE INDEX usage_events_by_model ON usage_events (model, id);

-- The last stored batch of each start of each gateway, to ignore repeated
-- batches.
CREATE TABLE usage_reporters (
    replica text NOT NULL,
    boot_id text NOT NULL,
    sequence bigint NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (replica, boot_id)
);
CREATE INDEX usage_reporters_by_time ON usage_reporters (seen_at);

-- The latest report of each gateway, available to every control plane replica.
CREATE TABLE gateway_reports (
    replica text PRIMARY KEY,
    report jsonb NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX gateway_reports_by_time ON gateway_reports (received_at);
