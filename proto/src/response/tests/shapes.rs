//! Usage as servers write it, one example of each shape, with its source.

use super::*;

/// What a server sends, and what of it counts.
struct Shape {
    source: &'static str,
    operation: Operation,
    /// A document; of a stream, its events, one a line.
    sent: &'static str,
    usage: Option<Usage>,
    gap: Gap,
}

const WHOLE: Gap = Gap { input: false, output: false };

const fn sides(input: u64, output: u64) -> Usage {
    Usage { input, output, total: input + output, cached_input: 0, cache_creation_input: 0, reasoning: 0 }
}

/// Documents.
const ANSWERS: &[Shape] = &[
    Shape {
        source: "OpenAI, API reference: the chat completion object",
        operation: Operation::ChatCompletions,
        sent: r#"{"id":"chatcmpl-B9MBs8","object":"chat.completion","created":1741569952,"model":"gpt-4.1-2025-04-14","choices":[{"index":0,"message":{"role":"assistant","content":"Hello!","refusal":null,"annotations":[]},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":2006,"completion_tokens":300,"total_tokens":2306,"prompt_tokens_details":{"cached_tokens":1920,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":64,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}},"service_tier":"default"}"#,
        usage: Some(Usage { cached_input: 1920, reasoning: 64, ..sides(2006, 300) }),
        gap: WHOLE,
    },
    Shape {
        source: "openai-python, types/completion_usage.py: cache_write_tokens",
        operation: Operation::ChatCompletions,
        sent: r#"{"usage":{"prompt_tokens":100,"completion_tokens":5,"total_tokens":105,"prompt_tokens_details":{"audio_tokens":null,"cache_write_tokens":60,"cached_tokens":30}}}"#,
        usage: Some(Usage { cached_input: 30, cache_creation_input: 60, ..sides(100, 5) }),
        gap: WHOLE,
    },
    Shape {
        source: "vLLM, entrypoints/openai/chat_completion/serving.py with --enable-prompt-tokens-details: created_cache_tokens",
        operation: Operation::ChatCompletions,
        sent: r#"{"usage":{"prompt_tokens":100,"total_tokens":105,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":32,"created_cache_tokens":64,"multimodal_tokens":null}}}"#,
        usage: Some(Usage { cached_input: 32, cache_creation_input: 64, ..sides(100, 5) }),
        gap: WHOLE,
    },
    Shape {
        source: "Alibaba Model Studio, context cache: chat completions with an explicit cache",
        operation: Operation::ChatCompletions,
        sent: r#"{"usage":{"prompt_tokens":2059,"completion_tokens":201,"total_tokens":2260,"completion_tokens_details":{"reasoning_tokens":170},"prompt_tokens_details":{"text_tokens":2059,"cache_creation":{"ephemeral_5m_input_tokens":2048},"cache_creation_input_tokens":2048,"cache_type":"ephemeral","cached_tokens":0}}}"#,
        usage: Some(Usage { cache_creation_input: 2048, reasoning: 170, ..sides(2059, 201) }),
        gap: WHOLE,
    },
    Shape {
        source: "LiteLLM, types/utils.py: an answer of Anthropic's, whose cache is told twice",
        operation: Operation::ChatCompletions,
        sent: r#"{"usage":{"completion_tokens":5,"prompt_tokens":1500,"total_tokens":1505,"prompt_tokens_details":{"audio_tokens":null,"cached_tokens":1000,"cache_creation_tokens":400,"cache_creation_token_details":{"ephemeral_5m_input_tokens":300,"ephemeral_1h_input_tokens":100}},"cache_creation_input_tokens":400,"cache_read_input_tokens":1000}}"#,
        usage: Some(Usage { cached_input: 1000, cache_creation_input: 400, ..sides(1500, 5) }),
        gap: WHOLE,
    },
    Shape {
        source: "OpenAI, API reference: legacy completions",
        operation: Operation::Completions,
        sent: r#"{"id":"cmpl-uqkvlQ","object":"text_completion","model":"gpt-3.5-turbo-instruct","choices":[{"text":"This is","index":0}],"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}}"#,
        usage: Some(sides(5, 7)),
        gap: WHOLE,
    },
    Shape {
        source: "openai-python, types/responses/response_usage.py",
        operation: Operation::Responses,
        sent: r#"{"id":"resp_67c","object":"response","status":"completed","output":[{"type":"message","content":[]}],"usage":{"input_tokens":36,"input_tokens_details":{"cached_tokens":20,"cache_write_tokens":10},"output_tokens":87,"output_tokens_details":{"reasoning_tokens":40},"total_tokens":123}}"#,
        usage: Some(Usage { cached_input: 20, cache_creation_input: 10, reasoning: 40, ..sides(36, 87) }),
        gap: WHOLE,
    },
    Shape {
        source: "Model Studio's way in the Responses API: parts alone, as deep as they lie",
        operation: Operation::Responses,
        sent: r#"{"usage":{"input_tokens":1524,"output_tokens":1534,"total_tokens":3058,"input_tokens_details":{"cached_tokens":1305,"cache_creation":{"ephemeral_5m_input_tokens":213}}}}"#,
        usage: Some(Usage { cached_input: 1305, cache_creation_input: 213, ..sides(1524, 1534) }),
        gap: WHOLE,
    },
    Shape {
        source: "OpenAI, API reference: embeddings",
        operation: Operation::Embeddings,
        sent: r#"{"object":"list","data":[{"object":"embedding","embedding":[0.0023,-0.009],"index":0}],"model":"text-embedding-ada-002","usage":{"prompt_tokens":8,"total_tokens":8}}"#,
        usage: Some(sides(8, 0)),
        gap: WHOLE,
    },
    Shape {
        source: "Anthropic, anthropic-sdk-python types/usage.py: cache_creation by time to live, of which the count is the sum",
        operation: Operation::Messages,
        sent: r#"{"id":"msg_01","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[{"type":"text","text":"Hi"}],"usage":{"input_tokens":4,"cache_creation_input_tokens":100,"cache_read_input_tokens":2000,"cache_creation":{"ephemeral_5m_input_tokens":60,"ephemeral_1h_input_tokens":40},"output_tokens":7,"service_tier":"standard","server_tool_use":{"web_search_requests":0}}}"#,
        usage: Some(Usage { cached_input: 2000, cache_creation_input: 100, ..sides(2104, 7) }),
        gap: WHOLE,
    },
    Shape {
        source: "Anthropic, beta_compaction_iteration_usage.py: a compaction is in none of the other counts",
        operation: Operation::Messages,
        sent: r#"{"usage":{"iterations":[{"type":"compaction","input_tokens":180000,"output_tokens":3500,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"cache_creation":null},{"type":"message","input_tokens":23000,"output_tokens":1000}],"input_tokens":23000,"output_tokens":1000}}"#,
        usage: Some(sides(203_000, 4500)),
        gap: WHOLE,
    },
    Shape {
        source: "Anthropic, advisor tool: what the advisor uses is in its iterations alone; their caches count as everywhere",
        operation: Operation::Messages,
        sent: r#"{"usage":{"input_tokens":4,"output_tokens":7,"output_tokens_details":{"thinking_tokens":5},"iterations":[{"output_tokens":9,"input_tokens":9,"type":"m\u0065ssage"},{"input_tokens":10,"cache_read_input_tokens":20,"cache_creation":{"ephemeral_1h_input_tokens":30},"output_tokens":2,"type":"advisor_message"},{"type":"compaction","input_tokens":1,"output_tokens":1},null,[{"type":"compaction","input_tokens":99}]]}}"#,
        usage: Some(Usage { cached_input: 20, cache_creation_input: 30, reasoning: 5, ..sides(65, 10) }),
        gap: WHOLE,
    },
    Shape {
        source: "Moonshot: the usage is in the choice; of several, each has what it wrote",
        operation: Operation::ChatCompletions,
        sent: r#"{"choices":[{"index":0,"usage":{"prompt_tokens":8,"completion_tokens":3,"total_tokens":11}},{"index":1,"usage":{"prompt_tokens":8,"completion_tokens":4,"total_tokens":12}}]}"#,
        usage: Some(sides(8, 7)),
        gap: WHOLE,
    },
    Shape {
        source: "Moonshot: where the answer has one of its own, that one holds",
        operation: Operation::ChatCompletions,
        sent: r#"{"choices":[{"index":0,"usage":{"prompt_tokens":8,"completion_tokens":3}}],"usage":{"prompt_tokens":8,"completion_tokens":5}}"#,
        usage: Some(sides(8, 5)),
        gap: WHOLE,
    },
    Shape {
        source: "Anthropic, beta_message_iteration_usage.py: iterations of messages have usages of their own, which are in the sum",
        operation: Operation::Messages,
        sent: r#"{"usage":{"iterations":[{"type":"message","input_tokens":9,"output_tokens":9,"cache_read_input_tokens":9}],"input_tokens":4,"cache_read_input_tokens":null,"output_tokens":7}}"#,
        usage: Some(sides(4, 7)),
        gap: WHOLE,
    },
    Shape {
        source: "vLLM #40912: cache usage of /v1/messages is absent where it is not known",
        operation: Operation::Messages,
        sent: r#"{"id":"chatcmpl-1","content":[],"model":"m","usage":{"input_tokens":25,"output_tokens":5}}"#,
        usage: Some(sides(25, 5)),
        gap: WHOLE,
    },
    Shape {
        source: "vLLM, protocol.py UsageInfo: details are null without --enable-prompt-tokens-details",
        operation: Operation::ChatCompletions,
        sent: r#"{"id":"chatcmpl-1","choices":[],"usage":{"prompt_tokens":5,"total_tokens":7,"completion_tokens":2,"prompt_tokens_details":null},"prompt_logprobs":null,"kv_transfer_params":null}"#,
        usage: Some(sides(5, 2)),
        gap: WHOLE,
    },
    Shape {
        source: "vLLM, PromptTokenUsageInfo: cached_tokens may be null",
        operation: Operation::ChatCompletions,
        sent: r#"{"usage":{"prompt_tokens":5,"total_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":null}}}"#,
        usage: Some(sides(5, 2)),
        gap: WHOLE,
    },
    Shape {
        source: "SGLang, protocol.py UsageInfo: reasoning_tokens beside completion_tokens",
        operation: Operation::ChatCompletions,
        sent: r#"{"usage":{"prompt_tokens":29,"total_tokens":61,"completion_tokens":32,"prompt_tokens_details":{"cached_tokens":28},"reasoning_tokens":20},"metadata":{"weight_version":"default"}}"#,
        usage: Some(Usage { cached_input: 28, reasoning: 20, ..sides(29, 32) }),
        gap: WHOLE,
    },
    Shape {
        source: "Gemini, router-for-me/CLIProxyAPI #5733: thoughts are in the total alone",
        operation: Operation::ChatCompletions,
        sent: r#"{"usage":{"completion_tokens":0,"total_tokens":81,"prompt_tokens":21,"completion_tokens_details":{"reasoning_tokens":60}}}"#,
        usage: Some(Usage { reasoning: 60, ..sides(21, 60) }),
        gap: WHOLE,
    },
    Shape {
        source: "Gemini, mozilla-ai/any-llm #1290: they are not told",
        operation: Operation::ChatCompletions,
        sent: r#"{"usage":{"prompt_tokens":20,"completion_tokens":198,"total_tokens":623}}"#,
        usage: Some(sides(20, 603)),
        gap: WHOLE,
    },
    Shape {
        source: "Gemini: no completion_tokens where all of max_tokens went into thoughts",
        operation: Operation::ChatCompletions,
        sent: r#"{"choices":[{"finish_reason":"length","index":0,"message":{"role":"assistant"}}],"usage":{"prompt_tokens":6,"total_tokens":106}}"#,
        usage: Some(sides(6, 100)),
        gap: WHOLE,
    },
    Shape {
        source: "xAI, Wei-Shaw/sub2api #5771: reasoning is not in completion_tokens",
        operation: Operation::ChatCompletions,
        sent: r#"{"usage":{"prompt_tokens":10120,"completion_tokens":1499,"total_tokens":14428,"prompt_tokens_details":{"cached_tokens":128},"completion_tokens_details":{"reasoning_tokens":2809}}}"#,
        usage: Some(Usage { cached_input: 128, reasoning: 2809, ..sides(10120, 4308) }),
        gap: WHOLE,
    },
    Shape {
        source: "xAI, vercel/ai #12425, by servers that sum up themselves",
        operation: Operation::ChatCompletions,
        sent: r#"{"usage":{"prompt_tokens":12,"completion_tokens":2,"total_tokens":14,"completion_tokens_details":{"reasoning_tokens":317}}}"#,
        usage: Some(Usage { reasoning: 317, ..sides(12, 319) }),
        gap: WHOLE,
    },
    Shape {
        source: "DeepSeek, API reference: context caching",
        operation: Operation::ChatCompletions,
        sent: r#"{"usage":{"prompt_tokens":17,"completion_tokens":9,"total_tokens":26,"prompt_cache_hit_tokens":10,"prompt_cache_miss_tokens":7}}"#,
        usage: Some(Usage { cached_input: 10, ..sides(17, 9) }),
        gap: WHOLE,
    },
    Shape {
        source: "Moonshot and Together: cached_tokens beside prompt_tokens",
        operation: Operation::ChatCompletions,
        sent: r#"{"usage":{"prompt_tokens":17,"completion_tokens":9,"total_tokens":26,"cached_tokens":16}}"#,
        usage: Some(Usage { cached_input: 16, ..sides(17, 9) }),
        gap: WHOLE,
    },
    Shape {
        source: "Mistral, UsageInfo: the tokens of audio are in the total alone",
        operation: Operation::Transcriptions,
        sent: r#"{"model":"voxtral-mini-2507","text":"This week","language":"en","segments":[],"usage":{"prompt_audio_seconds":203,"prompt_tokens":4,"total_tokens":3264,"completion_tokens":635}}"#,
        usage: Some(sides(2629, 635)),
        gap: WHOLE,
    },
    Shape {
        source: "Groq: times beside counts",
        operation: Operation::ChatCompletions,
        sent: r#"{"usage":{"queue_time":0.037,"prompt_tokens":18,"prompt_time":0.0006,"completion_tokens":556,"completion_time":0.46,"total_tokens":574,"total_time":0.46},"usage_breakdown":null,"x_groq":{"id":"req_01jbd6g2qdfw2adyrt2az8hz4w"}}"#,
        usage: Some(sides(18, 556)),
        gap: WHOLE,
    },
    Shape {
        source: "OpenRouter: costs beside counts",
        operation: Operation::ChatCompletions,
        sent: r#"{"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12,"cost":0.00000315,"is_byok":false,"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},"cost_details":{"upstream_inference_cost":null},"completion_tokens_details":{"reasoning_tokens":0,"image_tokens":0}}}"#,
        usage: Some(sides(9, 3)),
        gap: WHOLE,
    },
    Shape {
        source: "Ollama, openai/openai.go",
        operation: Operation::ChatCompletions,
        sent: r#"{"id":"chatcmpl-1","object":"chat.completion","model":"llama3.2","system_fingerprint":"fp_ollama","choices":[],"usage":{"prompt_tokens":26,"completion_tokens":10,"total_tokens":36}}"#,
        usage: Some(sides(26, 10)),
        gap: WHOLE,
    },
    Shape {
        source: "llama.cpp, tools/server/README.md: cache_n + prompt_n + predicted_n are all tokens; where there is a usage, it holds",
        operation: Operation::ChatCompletions,
        sent: r#"{"timings":{"cache_n":236,"prompt_n":1,"prompt_ms":30.958,"predicted_n":35,"predicted_ms":661.064},"usage":{"completion_tokens":35,"prompt_tokens":237,"total_tokens":272,"prompt_tokens_details":{"cached_tokens":236}}}"#,
        usage: Some(Usage { cached_input: 236, ..sides(237, 35) }),
        gap: WHOLE,
    },
    Shape {
        source: "llama.cpp, the same without a usage",
        operation: Operation::ChatCompletions,
        sent: r#"{"choices":[],"timings":{"cache_n":236,"prompt_n":1,"prompt_ms":30.958,"predicted_n":35}}"#,
        usage: Some(Usage { cached_input: 236, ..sides(237, 35) }),
        gap: WHOLE,
    },
    Shape {
        source: "llama.cpp before cache_n: what came from the cache is not told",
        operation: Operation::Completions,
        sent: r#"{"timings":{"prompt_n":1,"predicted_n":35}}"#,
        usage: Some(sides(0, 35)),
        gap: Gap { input: true, output: false },
    },
    Shape {
        source: "Cohere, API reference: rerank v2. A search unit is no token",
        operation: Operation::Rerank,
        sent: r#"{"results":[{"index":3,"relevance_score":0.999071}],"id":"07734bd2","meta":{"api_version":{"version":"2","is_experimental":false},"billed_units":{"search_units":1}}}"#,
        usage: None,
        gap: WHOLE,
    },
    Shape {
        source: "Cohere, litellm types/rerank.py: RerankTokens and RerankBilledUnits",
        operation: Operation::Rerank,
        sent: r#"{"meta":{"billed_units":{"search_units":1,"input_tokens":60},"tokens":{"input_tokens":64,"output_tokens":0}},"results":[]}"#,
        usage: Some(sides(64, 0)),
        gap: WHOLE,
    },
    Shape {
        source: "Cohere, embeddings: billed units alone",
        operation: Operation::Embeddings,
        sent: r#"{"embeddings":{"float":[[0.1]]},"meta":{"billed_units":{"input_tokens":2,"output_tokens":null}}}"#,
        usage: Some(sides(2, 0)),
        gap: WHOLE,
    },
    Shape {
        source: "vLLM and Jina, rerank",
        operation: Operation::Rerank,
        sent: r#"{"id":"rerank-1","model":"jina-reranker-v2","usage":{"total_tokens":56},"results":[{"index":0,"document":{"text":"a"},"relevance_score":0.99}]}"#,
        usage: Some(sides(56, 0)),
        gap: WHOLE,
    },
    Shape {
        source: "OpenRouter, CreateRerankUsage",
        operation: Operation::Rerank,
        sent: r#"{"usage":{"cost":0.001,"search_units":1,"total_tokens":150}}"#,
        usage: Some(sides(150, 0)),
        gap: WHOLE,
    },
    Shape {
        source: "vLLM, score",
        operation: Operation::Score,
        sent: r#"{"id":"score-1","object":"list","data":[{"index":0,"object":"score","score":0.85}],"usage":{"prompt_tokens":100,"total_tokens":100,"completion_tokens":0,"prompt_tokens_details":null}}"#,
        usage: Some(sides(100, 0)),
        gap: WHOLE,
    },
    Shape {
        source: "openai-python, types/images_response.py",
        operation: Operation::ImageGenerations,
        sent: r#"{"created":1713833628,"data":[{"b64_json":"aGk="}],"usage":{"total_tokens":100,"input_tokens":50,"output_tokens":50,"input_tokens_details":{"text_tokens":10,"image_tokens":40}}}"#,
        usage: Some(sides(50, 50)),
        gap: WHOLE,
    },
    Shape {
        source: "OpenAI, models before gpt-image-1",
        operation: Operation::ImageVariations,
        sent: r#"{"created":1589478378,"data":[{"url":"https://example.com/1"}]}"#,
        usage: None,
        gap: WHOLE,
    },
    Shape {
        source: "openai-python, types/audio/transcription.py: UsageTokens",
        operation: Operation::Transcriptions,
        sent: r#"{"text":"Imagine","usage":{"type":"tokens","input_tokens":14,"input_token_details":{"text_tokens":0,"audio_tokens":14},"output_tokens":45,"total_tokens":59}}"#,
        usage: Some(sides(14, 45)),
        gap: WHOLE,
    },
    Shape {
        source: "openai-python, types/audio/transcription_verbose.py: seconds are no tokens",
        operation: Operation::Translations,
        sent: r#"{"task":"transcribe","duration":8.47,"text":"The beach","segments":[{"id":0,"tokens":[50364,440],"text":"The beach"}],"usage":{"type":"duration","seconds":9}}"#,
        usage: None,
        gap: WHOLE,
    },
    Shape {
        source: "Anthropic, count_tokens",
        operation: Operation::CountTokens,
        sent: r#"{"input_tokens":2095,"usage":{"input_tokens":2095,"output_tokens":1}}"#,
        usage: None,
        gap: WHOLE,
    },
    Shape {
        source: "vLLM, tokenize",
        operation: Operation::Tokenize,
        sent: r#"{"count":3,"max_model_len":4096,"tokens":[1,2,3],"usage":{"prompt_tokens":3}}"#,
        usage: None,
        gap: WHOLE,
    },
    Shape {
        source: "whatever passes through",
        operation: Operation::PassThrough,
        sent: r#"{"usage":{"prompt_tokens":3,"completion_tokens":4}}"#,
        usage: None,
        gap: WHOLE,
    },
    Shape {
        source: "a server that counts its output wrong",
        operation: Operation::ChatCompletions,
        sent: r#"{"usage":{"prompt_tokens":3,"completion_tokens":-4,"total_tokens":"7"}}"#,
        usage: Some(sides(3, 0)),
        gap: Gap { input: false, output: true },
    },
    Shape {
        source: "a server that counts its input wrong",
        operation: Operation::Messages,
        sent: r#"{"usage":{"input_tokens":1.5,"output_tokens":4}}"#,
        usage: Some(sides(0, 4)),
        gap: Gap { input: true, output: false },
    },
];

/// Streams.
const STREAMS: &[Shape] = &[
    Shape {
        source: "OpenAI, API reference: include_usage",
        operation: Operation::ChatCompletions,
        sent: r#"{"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null}}],"usage":null,"obfuscation":"x1"}
            {"choices":[{"index":0,"delta":{"content":"Hello"},"logprobs":null,"finish_reason":null}],"usage":null}
            {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}
            {"choices":[],"usage":{"prompt_tokens":19,"completion_tokens":1,"total_tokens":20,"prompt_tokens_details":{"cached_tokens":0}}}
            [DONE]"#,
        usage: Some(sides(19, 1)),
        gap: WHOLE,
    },
    Shape {
        source: "vLLM, continuous_usage_stats, broken off",
        operation: Operation::ChatCompletions,
        sent: r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":{"prompt_tokens":5,"total_tokens":5,"completion_tokens":0}}
            {"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":5,"total_tokens":6,"completion_tokens":1}}
            {"choices":[{"index":0,"delta":{"content":"b c"}}],"usage":{"prompt_tokens":5,"total_tokens":8,"completion_tokens":3}}"#,
        usage: Some(sides(5, 3)),
        gap: WHOLE,
    },
    Shape {
        source: "vLLM: an error in the middle of a stream, whose code is a number",
        operation: Operation::ChatCompletions,
        sent: r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}
            {"error":{"message":"EngineCore encountered an issue","type":"InternalServerError","param":null,"code":500}}
            [DONE]"#,
        usage: None,
        gap: WHOLE,
    },
    Shape {
        source: "Groq: x_groq.usage in the last chunk, unless include_usage",
        operation: Operation::ChatCompletions,
        sent: r#"{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"x_groq":{"id":"req_1"}}
            {"choices":[{"index":0,"delta":{"content":"Hello"}}]}
            {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"x_groq":{"id":"req_1","usage":{"queue_time":0.09,"prompt_tokens":38,"prompt_time":0.004,"completion_tokens":4,"total_tokens":42}}}
            [DONE]"#,
        usage: Some(sides(38, 4)),
        gap: WHOLE,
    },
    Shape {
        source: "llama.cpp, timings_per_token, broken off",
        operation: Operation::ChatCompletions,
        sent: r#"{"choices":[{"index":0,"delta":{"content":"a"}}],"timings":{"cache_n":10,"prompt_n":2,"predicted_n":1}}
            {"choices":[{"index":0,"delta":{"content":"b"}}],"timings":{"cache_n":10,"prompt_n":2,"predicted_n":2}}"#,
        usage: Some(Usage { cached_input: 10, ..sides(12, 2) }),
        gap: WHOLE,
    },
    Shape {
        source: "Moonshot: the usage is in the last choice",
        operation: Operation::ChatCompletions,
        sent: r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}
            {"choices":[{"index":0,"delta":{},"finish_reason":"stop","usage":{"prompt_tokens":8,"completion_tokens":3,"total_tokens":11,"cached_tokens":4}}]}
            [DONE]"#,
        usage: Some(Usage { cached_input: 4, ..sides(8, 3) }),
        gap: WHOLE,
    },
    Shape {
        source: "Anthropic, beta_message_delta_usage.py: a compaction in the last event, which does not name the input",
        operation: Operation::Messages,
        sent: r#"{"type":"message_start","message":{"usage":{"input_tokens":23000,"output_tokens":1,"iterations":[{"type":"compaction","input_tokens":180000,"output_tokens":3500}]}}}
            {"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}
            {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1000,"iterations":[{"type":"compaction","input_tokens":180000,"output_tokens":3500},{"type":"message","input_tokens":23000,"output_tokens":1000}]}}"#,
        usage: Some(sides(203_000, 4500)),
        gap: WHOLE,
    },
    Shape {
        source: "OpenRouter: the usage comes with a choice",
        operation: Operation::ChatCompletions,
        sent: r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":"Ol\u00e1"},"finish_reason":null}]}
            {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12,"cost":0.00000315}}
            [DONE]"#,
        usage: Some(sides(9, 3)),
        gap: WHOLE,
    },
    Shape {
        source: "a gateway that reports zeros",
        operation: Operation::ChatCompletions,
        sent: r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}
            {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":0,"total_tokens":9}}"#,
        usage: Some(sides(9, 0)),
        gap: Gap { input: false, output: true },
    },
    Shape {
        source: "openai-python, types/responses/response_completed_event.py",
        operation: Operation::Responses,
        sent: r#"{"type":"response.created","sequence_number":0,"response":{"id":"r","usage":null,"output":[]}}
            {"type":"response.output_text.delta","sequence_number":1,"delta":"Hi"}
            {"type":"response.completed","sequence_number":2,"response":{"id":"r","output":[],"usage":{"input_tokens":37,"input_tokens_details":{"cached_tokens":3},"output_tokens":11,"output_tokens_details":{"reasoning_tokens":7},"total_tokens":48}}}"#,
        usage: Some(Usage { cached_input: 3, reasoning: 7, ..sides(37, 11) }),
        gap: WHOLE,
    },
    Shape {
        source: "openai-python, types/responses/response_incomplete_event.py",
        operation: Operation::Responses,
        sent: r#"{"type":"response.incomplete","response":{"usage":{"input_tokens":37,"output_tokens":11,"total_tokens":48},"incomplete_details":{"reason":"max_output_tokens"}}}"#,
        usage: Some(sides(37, 11)),
        gap: WHOLE,
    },
    Shape {
        source: "openai-python, types/responses/response_failed_event.py",
        operation: Operation::Responses,
        sent: r#"{"type":"response.in_progress","response":{"usage":null}}
            {"type":"response.failed","response":{"error":{"code":"server_error","message":"no"},"usage":{"input_tokens":37,"output_tokens":0,"total_tokens":37}}}"#,
        usage: Some(sides(37, 0)),
        gap: WHOLE,
    },
    Shape {
        source: "Anthropic, streaming messages",
        operation: Operation::Messages,
        sent: r#"{"type":"message_start","message":{"id":"msg_1","content":[],"usage":{"input_tokens":25,"cache_read_input_tokens":100,"output_tokens":1}}}
            {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}
            {"type":"ping"}
            {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}
            {"type":"content_block_stop","index":0}
            {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":15}}
            {"type":"message_stop"}"#,
        usage: Some(Usage { cached_input: 100, ..sides(125, 15) }),
        gap: WHOLE,
    },
    Shape {
        source: "Anthropic, message_delta_usage.py: all counts are cumulative, and may stand in both events",
        operation: Operation::Messages,
        sent: r#"{"type":"message_start","message":{"usage":{"input_tokens":25,"cache_creation_input_tokens":10,"cache_read_input_tokens":100,"output_tokens":1}}}
            {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":60,"cache_creation_input_tokens":10,"cache_read_input_tokens":100,"output_tokens":15}}"#,
        usage: Some(Usage { cached_input: 100, cache_creation_input: 10, ..sides(170, 15) }),
        gap: WHOLE,
    },
    Shape {
        source: "litellm #31069: counts of zero at the start",
        operation: Operation::Messages,
        sent: r#"{"type":"message_start","message":{"usage":{"input_tokens":0,"output_tokens":0}}}
            {"type":"content_block_delta","delta":{"type":"text_delta","text":"Hello"}}
            {"type":"message_delta","delta":{},"usage":{"input_tokens":20,"cache_read_input_tokens":80,"output_tokens":5}}"#,
        usage: Some(Usage { cached_input: 80, ..sides(100, 5) }),
        gap: WHOLE,
    },
    Shape {
        source: "Anthropic, broken off by an error event",
        operation: Operation::Messages,
        sent: r#"{"type":"message_start","message":{"usage":{"input_tokens":25,"output_tokens":1}}}
            {"type":"content_block_delta","delta":{"type":"text_delta","text":"Hello"}}
            {"type":"content_block_delta","delta":{"type":"text_delta","text":" there"}}
            {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
        usage: Some(sides(25, 1)),
        gap: Gap { input: false, output: true },
    },
    Shape {
        source: "openai-python, types/image_gen_completed_event.py",
        operation: Operation::ImageGenerations,
        sent: r#"{"type":"image_generation.partial_image","b64_json":"aGk=","partial_image_index":0}
            {"type":"image_generation.completed","b64_json":"aGk=","usage":{"total_tokens":100,"input_tokens":50,"output_tokens":50,"input_tokens_details":{"text_tokens":10,"image_tokens":40}}}"#,
        usage: Some(sides(50, 50)),
        gap: WHOLE,
    },
    Shape {
        source: "openai-python, types/image_edit_completed_event.py",
        operation: Operation::ImageEdits,
        sent: r#"{"type":"image_edit.completed","b64_json":"aGk=","usage":{"total_tokens":100,"input_tokens":50,"output_tokens":50}}"#,
        usage: Some(sides(50, 50)),
        gap: WHOLE,
    },
    Shape {
        source: "openai-python, types/audio/transcription_text_done_event.py",
        operation: Operation::Transcriptions,
        sent: r#"{"type":"transcript.text.delta","delta":"I"}
            {"type":"transcript.text.done","text":"I","usage":{"type":"tokens","input_tokens":14,"input_token_details":{"text_tokens":0,"audio_tokens":14},"output_tokens":45,"total_tokens":59}}"#,
        usage: Some(sides(14, 45)),
        gap: WHOLE,
    },
    Shape {
        source: "OpenAI, API reference: speech.audio.done",
        operation: Operation::Speech,
        sent: r#"{"type":"speech.audio.delta","audio":"aGk="}
            {"type":"speech.audio.done","usage":{"input_tokens":14,"output_tokens":101,"total_tokens":115}}"#,
        usage: Some(sides(14, 101)),
        gap: WHOLE,
    },
];

fn check(shape: &Shape, counted: &Counted, at: usize) {
    let Shape { source, usage, gap, .. } = shape;
    assert_eq!((counted.usage, counted.gap), (*usage, *gap), "{source}, cut at {at}");
    assert!(!counted.malformed, "{source}");
}

#[test]
fn the_usage_of_every_answer_that_servers_are_known_to_give_is_read() {
    for shape in ANSWERS {
        for at in 0..=shape.sent.len() {
            let (left, right) = shape.sent.as_bytes().split_at(at);
            check(shape, &json_answer(shape.operation, [left, right]), at);
        }
    }
}

#[test]
fn the_usage_of_every_stream_that_servers_are_known_to_send_is_read() {
    for shape in STREAMS {
        let text: String = shape.sent.lines().map(|event| format!("data: {}\n\n", event.trim_start())).collect();
        for at in 0..=text.len() {
            let mut scanner = ResponseScanner::new(shape.operation, BodyFormat::EventStream, UsageVisibility::Keep);
            let (left, right) = text.as_bytes().split_at(at);
            assert_eq!(scanner.feed(&Bytes::copy_from_slice(left), EndOfStream::More), Output::Unchanged);
            assert_eq!(scanner.feed(&Bytes::copy_from_slice(right), EndOfStream::End), Output::Unchanged);
            check(shape, &scanner.counted(), at);
        }
    }
}
