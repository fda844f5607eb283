-- Failed logins, by the SHA-256 of a scope: a name at an address, an address, or a name at
-- addresses that are not known. Shared by all control planes.
CREATE TABLE login_failures (
    key bytea PRIMARY KEY,
    count integer NOT NULL CHECK (count >= 0),
    last_at timestamptz NOT NULL
);

-- The addresses from which a name has logged in, both as SHA-256.
CREATE TABLE known_logins (
    name_digest bytea NOT NULL,
    address_digest bytea NOT NULL,
    last_at timestamptz NOT NULL,
    PRIMARY KEY (name_digest, address_digest)
);
