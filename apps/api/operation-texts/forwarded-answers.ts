const categories = [
  'harassment',
  'harassment/threatening',
  'hate',
  'hate/threatening',
  'illicit',
  'illicit/violent',
  'self-harm',
  'self-harm/intent',
  'self-harm/instructions',
  'sexual',
  'sexual/minors',
  'violence',
  'violence/graphic',
];
const ofEach = (value: unknown): object => Object.fromEntries(categories.map((category) => [category, value]));

const images = {
  created: 1_795_470_000,
  background: 'opaque',
  data: [{ b64_json: 'iVBORw0KGgo…' }],
  output_format: 'png',
  quality: 'low',
  size: '1024x1024',
  usage: {
    input_tokens: 5,
    input_tokens_details: { image_tokens: 0, text_tokens: 5 },
    output_tokens: 272,
    total_tokens: 277,
  },
};
const transcription = { text: 'Hello.', usage: { type: 'duration', seconds: 1 } };

/** Answers of areas that are forwarded whole, as providers with OpenAI's interface give them: these are the provider's own. */
export const forwardedAnswers: Readonly<Record<string, object>> = {
  createModeration: {
    id: 'modr-abc',
    model: 'omni-moderation-latest',
    results: [
      {
        flagged: false,
        categories: ofEach(false),
        category_scores: ofEach(0.0005),
        category_applied_input_types: ofEach([]),
      },
    ],
  },
  createImage: images,
  editImage: images,
  createImageVariation: images,
  createTranscription: transcription,
  createTranslation: transcription,
  createRerank: {
    id: '31f8159bae832bea30c02ebb98095cd3',
    model: 'rerank-v3.5',
    results: [
      { index: 0, relevance_score: 0.830323 },
      { index: 1, relevance_score: 0.163177 },
    ],
    usage: { total_tokens: 21 },
    meta: { billed_units: { search_units: 1 } },
  },
  createResponse: {
    id: 'resp_abc',
    object: 'response',
    created_at: 1_795_470_000,
    status: 'completed',
    background: false,
    error: null,
    incomplete_details: null,
    instructions: null,
    max_output_tokens: null,
    metadata: {},
    model: 'gpt-5-mini',
    output: [
      {
        id: 'msg_abc',
        type: 'message',
        status: 'completed',
        role: 'assistant',
        content: [
          { type: 'output_text', text: 'Air scatters blue light more than red.', annotations: [], logprobs: [] },
        ],
      },
    ],
    parallel_tool_calls: true,
    previous_response_id: null,
    reasoning: { effort: null, summary: null },
    service_tier: 'default',
    store: true,
    temperature: 1,
    text: { format: { type: 'text' } },
    tool_choice: 'auto',
    tools: [],
    top_p: 1,
    truncation: 'disabled',
    usage: {
      input_tokens: 6,
      input_tokens_details: { cached_tokens: 0 },
      output_tokens: 26,
      output_tokens_details: { reasoning_tokens: 0 },
      total_tokens: 32,
    },
    user: null,
  },
};
