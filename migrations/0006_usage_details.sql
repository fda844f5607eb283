-- Details of usage rows. NULL is unknown: a gateway of the previous release does
-- not report them, and a control plane of the previous release does not store them.
ALTER TABLE usage_events
    ADD COLUMN endpoint text,
    ADD COLUMN request_id text,
    ADD COLUMN attempts bigint CHECK (attempts >= 0),
    ADD COLUMN cached_tokens bigint CHECK (cached_tokens >= 0),
    ADD COLUMN reasoning_tokens bigint CHECK (reasoning_tokens >= 0),
    -- The counts are the gateway's estimate, and usage_reported is false.
    ADD COLUMN estimated boolean NOT NULL DEFAULT false;
