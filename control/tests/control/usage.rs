use reqwest::Method;
use serde_json::{Value, json};
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

use crate::accounting::{batch, reply, send};
use crate::harness::{Control, Database, PASSWORD, Session, started, status_and_json};
use crate::prices::{micros, with};

#[tokio::test]
async fn usage_events_keep_all_quantities_and_metadata_types() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    root.model("m").await;
    database
        .execute(
            "INSERT INTO teams (id, name) VALUES (7, 'research'); \
             UPDATE principals SET team_id = 7 WHERE id = 1",
        )
        .await;
    let metadata = json!({
        "count": 42, "negative": -7, "share": 0.1, "huge": 1e300, "flag": false, "text": "42",
        "name with \"quotes\"": "ünïcode \u{1}",
    });
    let details = json!({
        "cache_write_tokens": 10, "audio_prompt_tokens": 20, "audio_completion_tokens": 30,
        "images": 4, "input_characters": 50, "audio_ms": 60, "audio_bytes": 70, "cached": true,
        "metadata": metadata,
    });
    let events = [with("m", json!({})), with("m", details.clone())];
    assert_eq!(send(&control, &batch(1, &events)).await, reply(2, 0, false));
    let rows = root.get("/admin/usage/events").await;
    for (name, value) in details.as_object().unwrap() {
        assert_eq!(rows[0][name], *value, "{name}");
        let nothing = if name == "cached" {
            json!(false)
        } else {
            Value::Null
        };
        assert_eq!(rows[1][name], nothing, "{name}");
    }
    assert_eq!(
        (&rows[0]["team_id"], &rows[1]["team_id"]),
        (&json!(7), &json!(7))
    );
    let typed = "SELECT count(*) FROM usage_events WHERE jsonb_typeof(metadata -> 'count') = 'number' \
         AND jsonb_typeof(metadata -> 'share') = 'number' \
         AND jsonb_typeof(metadata -> 'flag') = 'boolean' \
         AND jsonb_typeof(metadata -> 'text') = 'string' \
         AND (metadata -> 'count')::bigint * 2 = 84";
    assert_eq!(database.number(typed).await, 1);
}

#[tokio::test]
async fn usage_events_can_be_filtered_by_key_and_metadata() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    root.model("m").await;
    let (key, _) = root.key("k", 1).await;
    let events = [
        with(
            "m",
            json!({ "key_id": key, "metadata": { "job": "nightly", "n": 1 } }),
        ),
        with("m", json!({ "metadata": { "job": "nightly", "n": "1" } })),
        with(
            "m",
            json!({ "metadata": { "job": "daily", "tags": ["team:search", "x"] } }),
        ),
        with("m", json!({})),
    ];
    assert_eq!(send(&control, &batch(1, &events)).await, reply(4, 0, false));
    for (query, found) in [
        (format!("key_id={key}"), vec![0]),
        ("metadata={\"job\":\"nightly\"}".to_owned(), vec![1, 0]),
        ("metadata={\"job\":\"nightly\",\"n\":1}".to_owned(), vec![0]),
        ("metadata={\"n\":\"1\"}".to_owned(), vec![1]),
        ("metadata={\"n\":1.0}".to_owned(), vec![0]),
        ("metadata={\"n\":true}".to_owned(), vec![]),
        ("metadata={\"tags\":\"x\"}".to_owned(), vec![]),
        ("metadata={}".to_owned(), vec![2, 1, 0]),
        ("metadata={\"tags\":[\"team:search\"]}".to_owned(), vec![2]),
        ("metadata={\"tags\":[\"team:other\"]}".to_owned(), vec![]),
        (
            format!("key_id={key}&metadata={{\"job\":\"daily\"}}"),
            vec![],
        ),
    ] {
        let rows = root.get(&format!("/admin/usage/events?{query}")).await;
        let reported: Vec<&Value> = rows
            .as_array()
            .unwrap()
            .iter()
            .map(|row| &row["metadata"])
            .collect();
        let expected: Vec<&Value> = found
            .iter()
            .map(|n: &usize| &events[*n]["metadata"])
            .collect();
        assert_eq!(reported, expected, "{query}");
    }
    for wrong in ["nightly", "[]", "{\"a\":\"\\u0000\"}"] {
        let path = format!("/admin/usage/events?metadata={wrong}");
        let (status, refused) = status_and_json(root.request(Method::GET, &path)).await;
        assert_eq!(status, 400, "{wrong}: {refused}");
    }
}

/// `key`, requests, prompt tokens, cost, saved cost and unpriced requests of each group.
async fn groups(root: &Session<'_>, query: &str) -> Vec<Value> {
    let rows = root.get(&format!("/admin/usage?{query}")).await;
    let reported = |row: &Value| {
        json!([
            row["key"],
            row["requests"],
            row["prompt_tokens"],
            row["cost_micros"],
            row["saved_cost_micros"],
            row["unpriced_requests"]
        ])
    };
    rows.as_array().unwrap().iter().map(reported).collect()
}

/// Stores five requests of two principals for two models, one of them a day ago. Returns
/// the IDs of the second principal and of the first one's key.
async fn history(database: &Database, control: &Control, root: &Session<'_>) -> (Value, i64) {
    let prices =
        json!({ "name": "dear", "input_price_per_mtok": 1_000_000, "output_price_per_mtok": 0 });
    root.post("/admin/models", prices).await;
    root.model("unpriced").await;
    let (key, _) = root.key("the key", 1).await;
    let (_, made) = root
        .post("/admin/principals", json!({ "name": "other" }))
        .await;
    let other = made["id"].clone();
    database
        .execute(
            "INSERT INTO teams (id, name) VALUES (7, 'research'); \
             UPDATE principals SET team_id = 7 WHERE name = 'other'",
        )
        .await;
    let chat = "/chat/completions";
    let job = json!({ "job": 1 });
    let yesterday = micros(OffsetDateTime::now_utc() - Duration::DAY);
    let events = [
        with(
            "dear",
            json!({ "requested_model": "smart", "endpoint": chat }),
        ),
        with(
            "dear",
            json!({ "key_id": key, "cached": true, "endpoint": chat }),
        ),
        with(
            "dear",
            json!({ "principal_id": other, "refusal": "budget", "prompt_tokens": 0 }),
        ),
        with(
            "unpriced",
            json!({ "principal_id": other, "at": yesterday, "metadata": job }),
        ),
        with(
            "unpriced",
            json!({ "principal_id": other, "endpoint": "/embeddings", "metadata": job }),
        ),
    ];
    assert_eq!(send(control, &batch(1, &events)).await, reply(5, 0, false));
    (other, key)
}

#[tokio::test]
async fn usage_can_be_grouped_by_every_dimension() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    history(&database, &control, &root).await;
    for (grouping, expected) in [
        (
            "model",
            json!([
                ["dear", 3, 2000, 1000, 1000, 0],
                ["unpriced", 2, 2000, 0, 0, 2]
            ]),
        ),
        (
            "principal",
            json!([
                ["bootstrap", 2, 2000, 1000, 1000, 0],
                ["other", 3, 2000, 0, 0, 2]
            ]),
        ),
        (
            "virtual_model",
            json!([["smart", 1, 1000, 1000, 0, 0], [null, 4, 3000, 0, 1000, 2]]),
        ),
        (
            "key",
            json!([
                [null, 4, 3000, 1000, 0, 2],
                ["the key", 1, 1000, 0, 1000, 0]
            ]),
        ),
        (
            "team",
            json!([
                [null, 2, 2000, 1000, 1000, 0],
                ["research", 3, 2000, 0, 0, 2]
            ]),
        ),
        (
            "endpoint",
            json!([
                ["/chat/completions", 2, 2000, 1000, 1000, 0],
                [null, 2, 1000, 0, 0, 1],
                ["/embeddings", 1, 1000, 0, 0, 1]
            ]),
        ),
        (
            "metadata:job",
            json!([[null, 3, 2000, 1000, 1000, 0], ["1", 2, 2000, 0, 0, 2]]),
        ),
    ] {
        let found = groups(&root, &format!("group_by={grouping}")).await;
        assert_eq!(Value::from(found), expected, "{grouping}");
    }
    let by_model = groups(&root, "").await;
    assert_eq!(by_model, groups(&root, "group_by=model").await);
    assert_eq!(groups(&root, "limit=1").await, by_model[..1]);
}

#[tokio::test]
async fn a_request_counts_in_the_group_of_each_text_of_a_list() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    root.model("m").await;
    let name = "漢".repeat(64);
    let events = [
        json!({ "tags": ["team:search", "nightly", "team:search"] }),
        json!({ "tags": ["nightly"] }),
        json!({ "tags": [] }),
        json!({ "tags": "nightly", name.as_str(): "x" }),
        json!({}),
    ];
    let events: Vec<_> = events
        .into_iter()
        .map(|metadata| with("m", json!({ "metadata": metadata })))
        .collect();
    assert_eq!(send(&control, &batch(1, &events)).await, reply(5, 0, false));
    let counts = async |name: &str| {
        let groups = groups(&root, &format!("group_by=metadata:{name}")).await;
        let counts = groups.into_iter().map(|group| json!([group[0], group[1]]));
        Value::from(counts.collect::<Vec<_>>())
    };
    assert_eq!(
        counts("tags").await,
        json!([["nightly", 3], [null, 2], ["team:search", 1]])
    );
    assert_eq!(counts(&name).await, json!([[null, 4], ["x", 1]]));
}

/// Numbers that are equal are one value.
#[tokio::test]
async fn groups_of_metadata_keep_types_apart() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let prices =
        json!({ "name": "m", "input_price_per_mtok": 1_000_000, "output_price_per_mtok": 0 });
    root.post("/admin/models", prices).await;
    let values = json!([
        42,
        "42",
        42.0,
        ["42", "true", "42"],
        true,
        "true",
        null,
        "null",
        "",
        0.5,
        -1e300,
        []
    ]);
    // The prompts are powers of two, so that a sum names its events.
    let event = |(n, value): (usize, &Value)| {
        let metadata = json!({ "v": value, "other": 42 });
        with(
            "m",
            json!({ "prompt_tokens": 1 << n, "metadata": metadata }),
        )
    };
    let values = values.as_array().unwrap();
    let mut events: Vec<_> = values.iter().enumerate().map(event).collect();
    events.push(with("m", json!({ "prompt_tokens": 1 << 12 })));
    assert_eq!(
        send(&control, &batch(1, &events)).await,
        reply(13, 0, false)
    );
    let rows = root.get("/admin/usage?group_by=metadata:v").await;
    let sums = rows.as_array().unwrap().iter().map(|row| {
        assert_eq!(row["cost_micros"], row["prompt_tokens"]);
        let sum = row["prompt_tokens"].as_i64().unwrap();
        (sum, row["key"].clone(), row["value"].clone())
    });
    let mut found: Vec<_> = sums.collect();
    found.sort_by_key(|(sum, ..)| *sum);
    let huge = format!("-1{}", "0".repeat(300));
    let expected = [
        (0b101, json!("42"), json!(42)),
        (0b1010, json!("42"), json!("42")),
        (0b1_0000, json!("true"), json!(true)),
        (0b10_1000, json!("true"), json!("true")),
        (0b1000_0000, json!("null"), json!("null")),
        (0b1_0000_0000, json!(""), json!("")),
        (0b10_0000_0000, json!("0.5"), json!(0.5)),
        (0b100_0000_0000, json!(huge), json!(-1e300)),
        (0b1_1000_0100_0000, Value::Null, Value::Null),
    ];
    assert_eq!(found, expected);
    let by_model = root.get("/admin/usage").await;
    assert_eq!(by_model[0]["value"], Value::Null);
}

#[tokio::test]
async fn usage_can_be_limited_to_a_period() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    history(&database, &control, &root).await;
    let rows = root.get("/admin/usage/events").await;
    let text = rows[1]["at"].as_str().unwrap();
    let at = OffsetDateTime::parse(text, &Rfc3339).unwrap();
    let (then, later) = (
        at.format(&Rfc3339).unwrap(),
        (at + Duration::MICROSECOND).format(&Rfc3339).unwrap(),
    );
    let one = json!(["unpriced", 1, 1000, 0, 0, 1]);
    let between = format!("since={then}&until={later}");
    assert_eq!(groups(&root, &between).await, std::slice::from_ref(&one));
    assert_eq!(
        groups(&root, &format!("until={then}")).await,
        [] as [Value; 0]
    );
    let since = groups(&root, &format!("since={later}")).await;
    assert_eq!(since, [json!(["dear", 3, 2000, 1000, 1000, 0]), one]);
    let day = |at: OffsetDateTime| at.date().to_string();
    assert_eq!(
        groups(&root, "group_by=day").await,
        [
            json!([day(at + Duration::DAY), 4, 3000, 1000, 1000, 1]),
            json!([day(at), 1, 1000, 0, 0, 1]),
        ]
    );
    for wrong in [
        "group_by=colour",
        "group_by=metadata",
        "group_by=metadata:a%00",
        "group_by=metadata:",
        &format!("group_by=metadata:{}", "n".repeat(65)),
        "limit=0",
        "limit=1001",
        "since=yesterday",
        &format!("since={then}&until={then}"),
        "colour=red",
    ] {
        let path = format!("/admin/usage?{wrong}");
        let (status, _) = status_and_json(root.request(Method::GET, &path)).await;
        assert_eq!(status, 400, "{wrong}");
    }
}

#[tokio::test]
async fn usage_of_deleted_objects_keeps_its_name() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let (other, key) = history(&database, &control, &root).await;
    let before = groups(&root, "group_by=principal").await;
    let principal = format!("/admin/principals/{other}");
    assert_eq!(root.delete(&principal).await.0, 204);
    database.execute("DELETE FROM api_keys").await;
    assert_eq!(groups(&root, "group_by=principal").await, before);
    let keys = groups(&root, "group_by=key").await;
    assert_eq!(keys[1], json!([key.to_string(), 1, 1000, 0, 1000, 0]));
}

#[tokio::test]
async fn usage_sums_do_not_overflow() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    root.model("m").await;
    let most = json!({ "prompt_tokens": u64::MAX, "completion_tokens": u64::MAX, "cost_micros": u64::MAX });
    let events = [with("m", most.clone()), with("m", most)];
    assert_eq!(send(&control, &batch(1, &events)).await, reply(2, 0, false));
    let most = i64::MAX;
    assert_eq!(groups(&root, "").await, [json!(["m", 2, most, most, 0, 0])]);
}
