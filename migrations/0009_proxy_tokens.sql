-- The proxy tokens of the control planes, so that each accepts what the others are
-- configured with, and for a bounded time what they were configured with before.
CREATE TABLE proxy_tokens (
    -- SHA-256 of the token.
    digest bytea PRIMARY KEY CHECK (octet_length(digest) = 32),
    -- Until when the token is accepted; NULL while a control plane is configured with it.
    expires_at timestamptz
);
