const model = '@main/gpt-5-mini';

/** A body to send to each operation of the areas that are forwarded whole. The provider decides what is valid. */
export const relayExamples = {
  createModeration: {
    model: '@main/omni-moderation-latest',
    input: 'I like the sea.',
  },
  createImage: {
    model: '@main/gpt-image-1',
    prompt: 'A lighthouse at dawn',
    size: '1024x1024',
  },
  editImage: {
    model: '@main/gpt-image-1',
    image: 'lighthouse.png',
    prompt: 'Make it night',
  },
  createImageVariation: {
    model: '@main/dall-e-2',
    image: 'lighthouse.png',
    n: 2,
  },
  createSpeech: {
    model: '@main/gpt-4o-mini-tts',
    input: 'Good morning.',
    voice: 'alloy',
  },
  createTranscription: {
    model: '@main/gpt-4o-mini-transcribe',
    file: 'hello.mp3',
  },
  createTranslation: { model: '@main/whisper-1', file: 'hallo.mp3' },
  createRerank: {
    model: '@ranker/rerank-v3.5',
    query: 'What is the capital of France?',
    documents: ['Paris is the capital of France.', 'Berlin is in Germany.'],
  },
  createResponse: {
    model,
    input: 'Why is the sky blue?',
  },
  countResponseInputTokens: {
    model,
    input: 'Why is the sky blue?',
  },
  compactResponse: {
    model,
    input: [{ role: 'user', content: 'Why is the sky blue?' }],
  },
  createConversation: { metadata: { topic: 'sky' } },
  updateConversation: { metadata: { topic: 'sea' } },
  createConversationItems: {
    items: [{ type: 'message', role: 'user', content: [{ type: 'input_text', text: 'Hello' }] }],
  },
  createAssistant: { model, name: 'Helper', instructions: 'Answer kindly.' },
  updateAssistant: { instructions: 'Answer shortly.' },
  createThread: { messages: [{ role: 'user', content: 'Hello' }] },
  createThreadAndRun: {
    assistant_id: 'asst_abc',
    thread: { messages: [{ role: 'user', content: 'Hello' }] },
  },
  updateThread: { metadata: { topic: 'sky' } },
  createMessage: { role: 'user', content: 'And at night?' },
  updateMessage: { metadata: { seen: 'yes' } },
  createRun: { assistant_id: 'asst_abc' },
  updateRun: { metadata: { seen: 'yes' } },
  submitToolOutputs: {
    tool_outputs: [{ tool_call_id: 'call_abc', output: '21 degrees' }],
  },
  createVectorStore: { name: 'Manuals', file_ids: ['file-abc'] },
  updateVectorStore: { name: 'Manuals of 2026' },
  searchVectorStore: { query: 'How is the lamp changed?' },
  createVectorStoreFile: { file_id: 'file-abc' },
  updateVectorStoreFile: { attributes: { year: 2026 } },
  createFileBatch: { file_ids: ['file-abc', 'file-def'] },
} as const;
