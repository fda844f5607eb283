//! What is read and written, as the benchmarks' load and upstream write it.

const SENTENCE: &str = "The quick brown fox says \\\"hi\\\" ";

/// Head of an upstream's JSON answer, of [`answer`]`(0)`.
pub const ANSWER_HEAD: &str = "HTTP/1.1 200 OK\r\ndate: Mon, 02 Nov 2026 10:00:00 GMT\r\n\
     server: uvicorn\r\ncontent-length: 602\r\ncontent-type: application/json\r\n\r\n";

/// The secret of a key.
pub fn key(number: u32) -> String {
    format!("sk-bench-{number:08}")
}

/// The name of a model.
pub fn model(number: u32) -> String {
    format!("bench-json-{number:04}")
}

/// Head of a request of an `OpenAI` SDK, with a key.
pub fn request_head(key: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:4000\r\n\
         Accept: application/json\r\nAccept-Encoding: identity\r\n\
         Content-Type: application/json\r\nUser-Agent: OpenAI/Python 3.57.0\r\n\
         X-Stainless-Lang: python\r\nX-Stainless-Package-Version: 3.57.0\r\n\
         X-Stainless-OS: Linux\r\nX-Stainless-Runtime: CPython\r\n\
         Authorization: Bearer {key}\r\nContent-Length: 1024\r\n\r\n"
    )
}

/// A chat request of so many bytes: messages first, model last.
pub fn chat(bytes: usize) -> Vec<u8> {
    let front = "{\"messages\":[{\"role\":\"user\",\"content\":\"";
    let back = format!(
        "\"}}],\"max_tokens\":64,\"temperature\":0.7,\"model\":\"{}\"}}",
        model(0)
    );
    let room = bytes.saturating_sub(front.len() + back.len());
    let mut text = SENTENCE.repeat(room / SENTENCE.len());
    text.push_str(&"x".repeat(room - text.len()));
    format!("{front}{text}{back}").into_bytes()
}

/// A chat completion with usage at its end, as long as its content makes it.
pub fn answer(content_bytes: usize) -> Vec<u8> {
    let content = "x".repeat(content_bytes);
    format!(
        "{{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion\",\
         \"created\":1767225600,\"model\":\"{}\",\"choices\":[{{\"index\":0,\"message\":\
         {{\"role\":\"assistant\",\"content\":\"{content}\"}},\"logprobs\":null,\
         \"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":250,\
         \"completion_tokens\":64,\"total_tokens\":314,\"prompt_tokens_details\":null}}}}",
        model(0)
    )
    .into_bytes()
}

/// An event of a stream with a token.
pub fn event() -> Vec<u8> {
    format!(
        "data: {{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\
         \"created\":1767225600,\"model\":\"{}\",\"choices\":[{{\"index\":0,\"delta\":\
         {{\"content\":\" token\"}},\"logprobs\":null,\"finish_reason\":null}}]}}\n\n",
        model(0)
    )
    .into_bytes()
}

/// The last events of a stream: the usage, and the end.
pub fn stream_end() -> Vec<u8> {
    format!(
        "data: {{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\
         \"created\":1767225600,\"model\":\"{}\",\"choices\":[],\"usage\":{{\"prompt_tokens\":250,\
         \"completion_tokens\":64,\"total_tokens\":314}}}}\n\ndata: [DONE]\n\n",
        model(0)
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use fastllm_wire::http1::{Limits, RequestHead, ResponseHead};
    use fastllm_wire::{RequestSchema, StreamEnding, StreamInspector, Usage, scan};

    use super::{ANSWER_HEAD, answer, chat, event, key, request_head, stream_end};

    #[test]
    fn what_is_timed_is_what_it_should_be() {
        for size in [1 << 10, 64 << 10] {
            let body = chat(size);
            assert_eq!(body.len(), size);
            assert_eq!(
                scan(&body, RequestSchema::Chat).unwrap().ceiling(),
                Some(64)
            );
        }
        let head = request_head(&key(1)).into_bytes();
        let read = RequestHead::default().parse(&head, Limits::default());
        assert_eq!(read.unwrap(), Some(head.len()));
        let head = ANSWER_HEAD.as_bytes();
        let read = ResponseHead::default().parse(head, false, Limits::default());
        assert_eq!(read.unwrap(), Some(head.len()));
        assert_eq!(Usage::from_response(&answer(9)).unwrap().prompt_tokens, 250);
        let mut tail = StreamInspector::new(true, StreamEnding::Choices(1));
        assert_eq!(tail.push(&event()).len(), event().len());
        tail.push(&stream_end());
        assert!(tail.is_complete());
        assert_eq!(tail.usage().unwrap().completion_tokens, Some(64));
    }
}
