-- Options of backends: concurrency, request format, health probes. Every column
-- has a default, so that the previous release keeps working.

ALTER TABLE models
    -- NULL is the default of the gateways.
    ADD COLUMN timeout_ms integer CHECK (timeout_ms BETWEEN 1 AND 3600000),
    ADD COLUMN stream_timeout_ms integer CHECK (stream_timeout_ms BETWEEN 1 AND 3600000),
    ADD COLUMN max_retries integer CHECK (max_retries BETWEEN 0 AND 16);

ALTER TABLE model_backends
    -- It gets no new requests; those in flight are finished.
    ADD COLUMN draining boolean NOT NULL DEFAULT false,
    -- Per gateway; NULL is unlimited.
    ADD COLUMN max_concurrency integer CHECK (max_concurrency BETWEEN 1 AND 100000),
    ADD COLUMN max_queue integer NOT NULL DEFAULT 100 CHECK (max_queue BETWEEN 0 AND 10000),
    ADD COLUMN queue_timeout_ms integer NOT NULL DEFAULT 10000
        CHECK (queue_timeout_ms BETWEEN 1 AND 600000),
    -- A JSON object of names and values, encrypted like upstream_api_key. The
    -- names are stored separately, so that they can be shown.
    ADD COLUMN extra_headers bytea,
    ADD COLUMN extra_header_names text[] NOT NULL DEFAULT '{}',
    ADD COLUMN extra_query jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(extra_query) = 'object'),
    ADD COLUMN path_template text,
    ADD COLUMN health_check boolean NOT NULL DEFAULT true,
    ADD COLUMN health_path text NOT NULL DEFAULT '/models',
    ADD COLUMN health_method text NOT NULL DEFAULT 'GET'
        CHECK (health_method IN ('GET', 'HEAD', 'POST')),
    ADD COLUMN health_expect text NOT NULL DEFAULT '2xx',
    ADD CHECK ((extra_headers IS NULL) = (cardinality(extra_header_names) = 0));

-- The key that credentials are encrypted with, written by the first control plane. A
-- control plane with other keys does not start, so that none writes credentials which
-- the others cannot decrypt, or publishes a snapshot without those that it cannot.
CREATE TABLE encryption_key (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    -- A constant, encrypted like a credential.
    check_value bytea NOT NULL
);
