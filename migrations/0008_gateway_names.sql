-- Starts of gateways that a later start under the same name followed. One that
-- still reports is a duplicate of the later one.
CREATE TABLE duplicate_gateways (
    replica text NOT NULL,
    boot_id text NOT NULL,
    seen_at timestamptz NOT NULL,
    -- When it last ran concurrently with another start.
    concurrent_at timestamptz,
    PRIMARY KEY (replica, boot_id)
);

-- The starts that share limits and budgets: the last one of each name, and its
-- duplicates. Queries restrict seen_at themselves.
CREATE VIEW gateway_starts AS
SELECT replica, boot_id, seen_at FROM limit_replicas
UNION ALL
SELECT v.replica, v.boot_id, v.seen_at
  FROM duplicate_gateways AS v JOIN limit_replicas AS r ON r.replica = v.replica AND r.boot_id <> v.boot_id
 WHERE v.concurrent_at >= now() - interval '30 seconds';
