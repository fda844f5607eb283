-- What a usage row says besides who, what and how much. NULL is unknown: a
-- gateway of the release before does not say it, and a control plane of the
-- release before does not store it.
ALTER TABLE usage_events
    ADD COLUMN endpoint text,
    ADD COLUMN request_id text,
    ADD COLUMN attempts bigint CHECK (attempts >= 0),
    ADD COLUMN cached_tokens bigint CHECK (cached_tokens >= 0),
    ADD COLUMN reasoning_tokens bigint CHECK (reasoning_tokens >= 0),
    -- The counts are the gateway's estimate; usage_reported is false then.
    ADD COLUMN estimated boolean NOT NULL DEFAULT false;
