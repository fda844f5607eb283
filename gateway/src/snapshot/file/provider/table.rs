//! The table of providers.

use super::{Api, Provider};

const ANTHROPIC: &str = "Anthropic's API is not supported by this release; for its OpenAI-compatible \
                         endpoint, set model: openai/NAME and api_base: https://api.anthropic.com/v1";
const GEMINI: &str = "Gemini's API is not supported by this release; for its OpenAI-compatible endpoint, \
                      set model: openai/NAME and \
                      api_base: https://generativelanguage.googleapis.com/v1beta/openai";
const VERTEX: &str = "Vertex AI needs Google's short-lived credentials, which are not supported; with an \
                      API key, set model: openai/NAME and \
                      api_base: https://generativelanguage.googleapis.com/v1beta/openai";
const BEDROCK: &str = "requests signed for AWS are not supported; with a Bedrock API key, set \
                       model: openai/NAME and \
                       api_base: https://bedrock-runtime.REGION.amazonaws.com/openai/v1";
const AZURE_AI: &str = "set model: openai/NAME, api_base to the OpenAI-compatible address of the \
                        resource (https://RESOURCE.services.ai.azure.com/openai/v1), \
                        auth_header: api-key and auth_scheme: \"\"";
const CLOUDFLARE: &str = "set model: openai/NAME and \
                          api_base: https://api.cloudflare.com/client/v4/accounts/ACCOUNT/ai/v1";
const NOT_OPENAI: &str = "its API is not OpenAI's; put a service that translates it in between, and set \
                          model: openai/NAME and api_base to the address of that service";

/// Invariant: no prefix occurs twice.
pub(super) static PROVIDERS: [Provider; 66] = [
    Provider::service(
        &["openai", "text-completion-openai"],
        "https://api.openai.com/v1",
        &["OPENAI_API_KEY"],
    )
    .address_from(&["OPENAI_BASE_URL", "OPENAI_API_BASE"]),
    Provider::addressed(
        &["hosted_vllm", "vllm", "openai_like", "custom_openai"],
        &["HOSTED_VLLM_API_BASE", "OPENAI_LIKE_API_BASE"],
        &["HOSTED_VLLM_API_KEY", "OPENAI_LIKE_API_KEY"],
    ),
    Provider::service(
        &["openrouter"],
        "https://openrouter.ai/api/v1",
        &["OPENROUTER_API_KEY", "OR_API_KEY"],
    )
    .address_from(&["OPENROUTER_API_BASE"]),
    Provider::service(
        &["groq"],
        "https://api.groq.com/openai/v1",
        &["GROQ_API_KEY"],
    )
    .address_from(&["GROQ_API_BASE"]),
    Provider::service(
        &["mistral"],
        "https://api.mistral.ai/v1",
        &["MISTRAL_API_KEY"],
    )
    .address_from(&["MISTRAL_API_BASE", "MISTRAL_AZURE_API_BASE"]),
    Provider::service(
        &["codestral"],
        "https://codestral.mistral.ai/v1",
        &["CODESTRAL_API_KEY"],
    )
    .without_list(),
    Provider::service(
        &["deepseek"],
        "https://api.deepseek.com/v1",
        &["DEEPSEEK_API_KEY"],
    )
    .address_from(&["DEEPSEEK_API_BASE"]),
    Provider::service(
        &["together_ai", "together"],
        "https://api.together.xyz/v1",
        &[
            "TOGETHERAI_API_KEY",
            "TOGETHER_AI_API_KEY",
            "TOGETHER_API_KEY",
            "TOGETHER_AI_TOKEN",
        ],
    )
    .address_from(&["TOGETHER_AI_API_BASE"]),
    Provider::service(&["xai"], "https://api.x.ai/v1", &["XAI_API_KEY"])
        .address_from(&["XAI_API_BASE"]),
    Provider::service(
        &["fireworks_ai", "fireworks"],
        "https://api.fireworks.ai/inference/v1",
        &[
            "FIREWORKS_API_KEY",
            "FIREWORKS_AI_API_KEY",
            "FIREWORKSAI_API_KEY",
            "FIREWORKS_AI_TOKEN",
        ],
    )
    .address_from(&["FIREWORKS_API_BASE"])
    .with_api(Api::Fireworks),
    Provider::service(
        &["perplexity"],
        "https://api.perplexity.ai",
        &["PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY"],
    )
    .address_from(&["PERPLEXITY_API_BASE"])
    .without_list(),
    Provider::service(
        &["cohere", "cohere_chat"],
        "https://api.cohere.ai/compatibility/v1",
        &["COHERE_API_KEY", "CO_API_KEY"],
    )
    .with_api(Api::Cohere)
    .without_list(),
    Provider::service(
        &["nvidia_nim"],
        "https://integrate.api.nvidia.com/v1",
        &["NVIDIA_NIM_API_KEY", "NVIDIA_API_KEY"],
    )
    .address_from(&["NVIDIA_NIM_API_BASE"]),
    Provider::service(
        &["cerebras"],
        "https://api.cerebras.ai/v1",
        &["CEREBRAS_API_KEY"],
    )
    .address_from(&["CEREBRAS_API_BASE"]),
    Provider::service(
        &["sambanova"],
        "https://api.sambanova.ai/v1",
        &["SAMBANOVA_API_KEY"],
    )
    .address_from(&["SAMBANOVA_API_BASE"]),
    Provider::service(
        &["deepinfra"],
        "https://api.deepinfra.com/v1/openai",
        &["DEEPINFRA_API_KEY"],
    )
    .address_from(&["DEEPINFRA_API_BASE"]),
    Provider::service(
        &["novita"],
        "https://api.novita.ai/v3/openai",
        &["NOVITA_API_KEY"],
    ),
    Provider::service(
        &["nebius"],
        "https://api.studio.nebius.ai/v1",
        &["NEBIUS_API_KEY"],
    )
    .address_from(&["NEBIUS_API_BASE"]),
    Provider::service(
        &["hyperbolic"],
        "https://api.hyperbolic.xyz/v1",
        &["HYPERBOLIC_API_KEY"],
    ),
    Provider::service(
        &["lambda_ai"],
        "https://api.lambda.ai/v1",
        &["LAMBDA_API_KEY"],
    )
    .address_from(&["LAMBDA_API_BASE"]),
    Provider::service(
        &["moonshot"],
        "https://api.moonshot.ai/v1",
        &["MOONSHOT_API_KEY"],
    )
    .address_from(&["MOONSHOT_API_BASE"]),
    Provider::service(
        &["dashscope"],
        "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        &["DASHSCOPE_API_KEY"],
    )
    .address_from(&["DASHSCOPE_API_BASE"]),
    Provider::service(
        &["volcengine"],
        "https://ark.cn-beijing.volces.com/api/v3",
        &["VOLCENGINE_API_KEY", "ARK_API_KEY"],
    )
    .without_list(),
    Provider::service(&["zai"], "https://api.z.ai/api/paas/v4", &["ZAI_API_KEY"]).without_list(),
    Provider::service(
        &["minimax"],
        "https://api.minimax.io/v1",
        &["MINIMAX_API_KEY"],
    )
    .address_from(&["MINIMAX_API_BASE"])
    .without_list(),
    Provider::service(
        &["ai21", "ai21_chat"],
        "https://api.ai21.com/studio/v1",
        &["AI21_API_KEY"],
    )
    .without_list(),
    Provider::service(
        &["github"],
        "https://models.github.ai/inference",
        &["GITHUB_API_KEY", "GITHUB_TOKEN"],
    )
    .without_list(),
    Provider::service(
        &["featherless_ai"],
        "https://api.featherless.ai/v1",
        &["FEATHERLESS_AI_API_KEY", "FEATHERLESS_API_KEY"],
    ),
    Provider::service(
        &["friendliai"],
        "https://api.friendli.ai/serverless/v1",
        &["FRIENDLIAI_API_KEY", "FRIENDLI_TOKEN"],
    )
    .without_list(),
    Provider::service(
        &["nscale"],
        "https://inference.api.nscale.com/v1",
        &["NSCALE_API_KEY"],
    ),
    Provider::service(
        &["baseten"],
        "https://inference.baseten.co/v1",
        &["BASETEN_API_KEY"],
    ),
    Provider::service(&["v0"], "https://api.v0.dev/v1", &["V0_API_KEY"]).without_list(),
    Provider::service(
        &["vercel_ai_gateway"],
        "https://ai-gateway.vercel.sh/v1",
        &["VERCEL_AI_GATEWAY_API_KEY", "VERCEL_OIDC_TOKEN"],
    ),
    Provider::service(
        &["morph"],
        "https://api.morphllm.com/v1",
        &["MORPH_API_KEY"],
    )
    .without_list(),
    Provider::service(
        &["inception"],
        "https://api.inceptionlabs.ai/v1",
        &["INCEPTION_API_KEY"],
    ),
    Provider::service(
        &["wandb"],
        "https://api.inference.wandb.ai/v1",
        &["WANDB_API_KEY"],
    ),
    Provider::service(
        &["gradient_ai"],
        "https://inference.do-ai.run/v1",
        &["GRADIENT_AI_API_KEY"],
    ),
    Provider::service(
        &["cometapi"],
        "https://api.cometapi.com/v1",
        &["COMETAPI_KEY", "COMETAPI_API_KEY"],
    ),
    Provider::service(
        &["compactifai"],
        "https://api.compactif.ai/v1",
        &["COMPACTIFAI_API_KEY"],
    ),
    Provider::service(
        &["ovhcloud"],
        "https://oai.endpoints.kepler.ai.cloud.ovh.net/v1",
        &["OVHCLOUD_API_KEY"],
    ),
    Provider::service(
        &["scaleway"],
        "https://api.scaleway.ai/v1",
        &["SCW_SECRET_KEY"],
    ),
    Provider::service(
        &["meta_llama"],
        "https://api.llama.com/compat/v1",
        &["LLAMA_API_KEY"],
    ),
    Provider::service(&["aiml"], "https://api.aimlapi.com/v1", &["AIML_API_KEY"])
        .address_from(&["AIML_API_BASE"]),
    Provider::service(&["chutes"], "https://llm.chutes.ai/v1", &["CHUTES_API_KEY"]),
    Provider::service(&["sarvam"], "https://api.sarvam.ai/v1", &["SARVAM_API_KEY"]).without_list(),
    Provider::service(&["poe"], "https://api.poe.com/v1", &["POE_API_KEY"]),
    Provider::service(
        &["nano-gpt"],
        "https://nano-gpt.com/api/v1",
        &["NANOGPT_API_KEY"],
    ),
    Provider::service(
        &["heroku"],
        "https://us.inference.heroku.com/v1",
        &["HEROKU_API_KEY"],
    )
    .address_from(&["HEROKU_API_BASE"])
    .without_list(),
    Provider::service(
        &["voyage"],
        "https://api.voyageai.com/v1",
        &["VOYAGE_API_KEY"],
    )
    .without_list(),
    Provider::service(
        &["jina_ai"],
        "https://api.jina.ai/v1",
        &["JINA_AI_API_KEY", "JINA_AI_TOKEN"],
    )
    .without_list(),
    Provider::addressed(
        &["ollama", "ollama_chat"],
        &["OLLAMA_API_BASE"],
        &["OLLAMA_API_KEY"],
    )
    .at("http://localhost:11434")
    .with_api(Api::OpenAiBelowV1),
    Provider::service(
        &["huggingface"],
        "https://router.huggingface.co/v1",
        &["HF_TOKEN", "HUGGINGFACE_API_KEY"],
    )
    .address_from(&["HF_API_BASE", "HUGGINGFACE_API_BASE"])
    .with_api(Api::HuggingFace),
    Provider::addressed(
        &["azure", "azure_text"],
        &["AZURE_API_BASE"],
        &["AZURE_API_KEY", "AZURE_OPENAI_API_KEY"],
    )
    .with_api(Api::Azure),
    Provider::addressed(
        &["litellm_proxy"],
        &["LITELLM_PROXY_API_BASE"],
        &["LITELLM_PROXY_API_KEY"],
    ),
    Provider::addressed(
        &["lm_studio"],
        &["LM_STUDIO_API_BASE"],
        &["LM_STUDIO_API_KEY"],
    ),
    Provider::addressed(
        &["xinference"],
        &["XINFERENCE_API_BASE"],
        &["XINFERENCE_API_KEY"],
    ),
    Provider::addressed(
        &["llamafile"],
        &["LLAMAFILE_API_BASE"],
        &["LLAMAFILE_API_KEY"],
    )
    .at("http://127.0.0.1:8080/v1"),
    Provider::addressed(
        &[
            "anyscale",
            "databricks",
            "datarobot",
            "docker_model_runner",
            "empower",
            "galadriel",
            "infinity",
            "lemonade",
            "oobabooga",
            "snowflake",
        ],
        &[],
        &[],
    ),
    Provider::foreign(&["anthropic", "anthropic_text"], ANTHROPIC)
        .at("https://api.anthropic.com/v1")
        .keyed(&["ANTHROPIC_API_KEY"]),
    Provider::foreign(&["gemini", "palm"], GEMINI)
        .at("https://generativelanguage.googleapis.com/v1beta/openai")
        .keyed(&["GEMINI_API_KEY", "GOOGLE_API_KEY"]),
    Provider::foreign(&["vertex_ai", "vertex_ai_beta"], VERTEX),
    Provider::foreign(&["bedrock", "bedrock_converse", "amazon_nova"], BEDROCK),
    Provider::foreign(&["sagemaker", "sagemaker_chat"], NOT_OPENAI),
    Provider::foreign(&["azure_ai"], AZURE_AI),
    Provider::foreign(&["cloudflare"], CLOUDFLARE),
    Provider::foreign(
        &[
            "aleph_alpha",
            "assemblyai",
            "bytez",
            "clarifai",
            "deepgram",
            "elevenlabs",
            "fal_ai",
            "gigachat",
            "github_copilot",
            "maritalk",
            "nlp_cloud",
            "oci",
            "petals",
            "predibase",
            "recraft",
            "replicate",
            "runwayml",
            "sap",
            "stability",
            "text-completion-codestral",
            "topaz",
            "triton",
            "watsonx",
            "watsonx_text",
        ],
        NOT_OPENAI,
    ),
];
