-- A key's expiry is a finite time or NULL; 'infinity' is not allowed.
ALTER TABLE api_keys ADD CONSTRAINT api_keys_expiry
    CHECK (isfinite(expires_at)
       AND expires_at >= '0001-01-01 00:00:00+00' AND expires_at < '10000-01-01 00:00:00+00');
