import type { OperationTexts } from '#libs/http/openapi.ts';
import { callErrors } from './calls.ts';
import { forwardedExamples } from './forwarded-examples.ts';

const forwarded =
  'Forwarded as it is to one provider, which the model (`@virtual-key/model`), `x-gateway-virtual-key`, `x-gateway-provider` or the ' +
  'first target of a config names; only the credential and the model are replaced. The provider decides what is valid.';
const stored =
  'Forwarded as it is to the provider that `x-gateway-virtual-key`, `x-gateway-provider` or a config names, where the object is stored.';

/** Of calls that name no model; each of them counts as one in rates of requests. */
const forwardErrors = {
  missing_credentials: callErrors.missing_credentials,
  virtual_key_not_found: callErrors.virtual_key_not_found,
  config_not_found: callErrors.config_not_found,
  unsupported_operation: callErrors.unsupported_operation,
  guardrails_not_applicable: 'the config or the workspace has guardrails, which cannot judge this call',
  rate_limited: callErrors.rate_limited,
  stored_object_not_found:
    'workspaces share the account at the provider, and this one created no object of that ID (404)',
  use_a_key: 'the request was signed in by a session cookie; send a gateway key (403)',
};
const modelErrors = {
  ...callErrors,
  guardrails_not_applicable: forwardErrors.guardrails_not_applicable,
  stored_object_not_found: forwardErrors.stored_object_not_found,
  use_a_key: forwardErrors.use_a_key,
};

/** An operation that uses a model. */
const calls = (what: string, example?: object): OperationTexts[string] => ({
  description: `${what} ${forwarded}`,
  ...(example === undefined ? {} : { example }),
  errors: modelErrors,
});
/** One that reads or changes what lives at the provider. */
const keeps = (what: string, example?: object): OperationTexts[string] => ({
  description: `${what} ${stored}`,
  ...(example === undefined ? {} : { example }),
  errors: forwardErrors,
});

/** Areas that are forwarded whole. */
export const forwardedTexts: OperationTexts = {
  createModeration: calls(
    'Says which categories of harm texts or images fall into.',
    forwardedExamples.createModeration,
  ),
  createImage: calls(
    'Makes images from a text, with `stream` as server-sent events where the provider has that.',
    forwardedExamples.createImage,
  ),
  editImage: calls(
    'With `mask` only a part of the image is changed. JSON is forwarded too, where the provider takes it.',
    forwardedExamples.editImage,
  ),
  createImageVariation: calls('Other images like the one that is sent.', forwardedExamples.createImageVariation),
  createSpeech: calls('Answers with audio, as it is made.', forwardedExamples.createSpeech),
  createTranscription: calls(
    'Audio of any length that the provider takes; it is sent on while it is uploaded.',
    forwardedExamples.createTranscription,
  ),
  createTranslation: calls('Speech of any language as English text.', forwardedExamples.createTranslation),
  createRerank: calls('Orders documents by how well they fit a query.', forwardedExamples.createRerank),
  createResponse: calls(
    'The Responses API, with `stream` as server-sent events. Lines of batches may call it too.',
    forwardedExamples.createResponse,
  ),
  countResponseInputTokens: calls(
    'Counts what a response would take as input, without making it.',
    forwardedExamples.countResponseInputTokens,
  ),
  compactResponse: calls('Makes a shorter input of a long one.', forwardedExamples.compactResponse),
  retrieveResponse: keeps('A response that was stored, also one that runs in the background.'),
  deleteResponse: keeps('The provider deletes it; its record in the request log stays.'),
  cancelResponse: keeps('Only for responses in the background.'),
  listResponseInputItems: keeps('What the model was given, in pages of the provider.'),
  createConversation: keeps('A conversation that responses can go on with.', forwardedExamples.createConversation),
  retrieveConversation: keeps('Without its items.'),
  updateConversation: keeps('Changes its metadata.', forwardedExamples.updateConversation),
  deleteConversation: keeps('Its items stay at the provider.'),
  listConversationItems: keeps('In pages of the provider.'),
  createConversationItems: keeps('Up to 20 at once.', forwardedExamples.createConversationItems),
  retrieveConversationItem: keeps('One message, tool call or other item.'),
  deleteConversationItem: keeps('Answers the conversation without it.'),
  listAssistants: keeps('In pages of the provider.'),
  createAssistant: calls('Superseded by the Responses API.', forwardedExamples.createAssistant),
  retrieveAssistant: keeps('Superseded by the Responses API.'),
  updateAssistant: keeps('Members that are left out stay.', forwardedExamples.updateAssistant),
  deleteAssistant: keeps('Its threads stay.'),
  createThread: keeps('Superseded by conversations.', forwardedExamples.createThread),
  createThreadAndRun: calls(
    'Both in one call, with `stream` as server-sent events.',
    forwardedExamples.createThreadAndRun,
  ),
  retrieveThread: keeps('Without its messages.'),
  updateThread: keeps('Changes its metadata and tool resources.', forwardedExamples.updateThread),
  deleteThread: keeps('With its messages and runs.'),
  listMessages: keeps('In pages of the provider.'),
  createMessage: keeps('It is part of the next run.', forwardedExamples.createMessage),
  retrieveMessage: keeps('One message with its attachments.'),
  updateMessage: keeps('Changes its metadata.', forwardedExamples.updateMessage),
  deleteMessage: keeps('Later runs do not have it.'),
  listRuns: keeps('In pages of the provider.'),
  createRun: calls('With `stream` as server-sent events.', forwardedExamples.createRun),
  retrieveRun: keeps('With its status, and what it needs to go on.'),
  updateRun: keeps('Changes its metadata.', forwardedExamples.updateRun),
  submitToolOutputs: keeps(
    'All outputs that the run asks for, at once; with `stream` as server-sent events.',
    forwardedExamples.submitToolOutputs,
  ),
  cancelRun: keeps('What it has done until then stays.'),
  listRunSteps: keeps('In pages of the provider.'),
  retrieveRunStep: keeps('A message that was made, or tool calls.'),
  listVectorStores: keeps('In pages of the provider.'),
  createVectorStore: keeps('From files that live at the provider.', forwardedExamples.createVectorStore),
  retrieveVectorStore: keeps('With the number of its files in each state.'),
  updateVectorStore: keeps('Its name, metadata and when it expires.', forwardedExamples.updateVectorStore),
  deleteVectorStore: keeps('Its files stay.'),
  searchVectorStore: keeps('Chunks that fit a query, best first.', forwardedExamples.searchVectorStore),
  listVectorStoreFiles: keeps('In pages of the provider.'),
  createVectorStoreFile: keeps('The provider indexes it in the background.', forwardedExamples.createVectorStoreFile),
  retrieveVectorStoreFile: keeps('With the state of its indexing.'),
  updateVectorStoreFile: keeps(
    'Changes its attributes, by which searches filter.',
    forwardedExamples.updateVectorStoreFile,
  ),
  deleteVectorStoreFile: keeps('The file itself stays.'),
  retrieveVectorStoreFileContent: keeps('The text that was read from it.'),
  createFileBatch: keeps('The provider indexes them in the background.', forwardedExamples.createFileBatch),
  retrieveFileBatch: keeps('With the number of its files in each state.'),
  cancelFileBatch: keeps('Files that are indexed stay.'),
  listFileBatchFiles: keeps('In pages of the provider.'),
};
