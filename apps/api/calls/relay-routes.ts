import type { Route, RouteText } from '#libs/http/route.ts';
import type { ScopedRelayArea } from '#libs/providers/provider.ts';
import { callErrors, targetErrors } from '../document-texts.ts';
import { relayRoute, toAreaTag, type RelayDeps, type RelayOperation } from './relay-call.ts';
import { relayExamples } from './relay-examples.ts';

/** Operations whose request is a form; all others accept JSON. */
const forms: ReadonlySet<string> = new Set([
  '/images/edits',
  '/images/variations',
  '/audio/transcriptions',
  '/audio/translations',
]);
const speech = '/audio/speech';

type Row = [method: RelayOperation['method'], path: string, operationId: string, summary: string, description: string];

// All operations of the OpenAI API in these areas.
const areas: Readonly<Record<ScopedRelayArea, readonly Row[]>> = {
  moderations: [
    [
      'POST',
      '/moderations',
      'createModeration',
      'Classify text or images',
      'Reports which categories of harmful content the text or images fall into.',
    ],
  ],
  images: [
    [
      'POST',
      '/images/generations',
      'createImage',
      'Create images',
      'Creates images from a text. With `stream`, they are sent as server-sent events if the provider supports it.',
    ],
    [
      'POST',
      '/images/edits',
      'editImage',
      'Edit an image',
      'With `mask`, only a part of the image changes. You can send JSON instead of a form if the provider supports it.',
    ],
    [
      'POST',
      '/images/variations',
      'createImageVariation',
      'Create variations of an image',
      'Creates images similar to the one you send.',
    ],
  ],
  audio: [
    ['POST', '/audio/speech', 'createSpeech', 'Convert text to speech', 'Returns audio while it is generated.'],
    [
      'POST',
      '/audio/transcriptions',
      'createTranscription',
      'Transcribe audio',
      'Takes audio of any length that the provider accepts, and forwards it during the upload.',
    ],
    [
      'POST',
      '/audio/translations',
      'createTranslation',
      'Translate audio into English text',
      'Takes speech in any language.',
    ],
  ],
  rerank: [
    [
      'POST',
      '/rerank',
      'createRerank',
      'Rank documents by relevance',
      'Sorts documents by their relevance to a query.',
    ],
  ],
  responses: [
    [
      'POST',
      '/responses/input_tokens',
      'countResponseInputTokens',
      'Count the input tokens of a response',
      'Counts the tokens without creating a response. For a provider without the Responses API, the count is estimated, and the answer has the header `x-gateway-token-count: estimated`.',
    ],
    [
      'POST',
      '/responses/compact',
      'compactResponse',
      'Compact the input of a long conversation',
      'Returns a shorter input that continues the conversation.',
    ],
    [
      'GET',
      '/responses/:responseId',
      'retrieveResponse',
      'Retrieve a model response',
      'Returns a stored response, including one that runs in the background.',
    ],
    [
      'DELETE',
      '/responses/:responseId',
      'deleteResponse',
      'Delete a model response',
      'Deletes the response at the provider. Its record in the request log stays.',
    ],
    [
      'POST',
      '/responses/:responseId/cancel',
      'cancelResponse',
      'Cancel a background response',
      'Only responses in the background can be cancelled.',
    ],
    [
      'GET',
      '/responses/:responseId/input_items',
      'listResponseInputItems',
      'List the input items of a response',
      'Returns the input of the model, paginated by the provider.',
    ],
  ],
  conversations: [
    [
      'POST',
      '/conversations',
      'createConversation',
      'Create a conversation',
      'Stores a conversation that later responses can continue.',
    ],
    [
      'GET',
      '/conversations/:conversationId',
      'retrieveConversation',
      'Retrieve a conversation',
      'Returns the conversation without its items.',
    ],
    ['POST', '/conversations/:conversationId', 'updateConversation', 'Update a conversation', 'Changes the metadata.'],
    [
      'DELETE',
      '/conversations/:conversationId',
      'deleteConversation',
      'Delete a conversation',
      'The items of the conversation stay at the provider.',
    ],
    [
      'GET',
      '/conversations/:conversationId/items',
      'listConversationItems',
      'List the items of a conversation',
      'Pagination follows the provider.',
    ],
    [
      'POST',
      '/conversations/:conversationId/items',
      'createConversationItems',
      'Add items to a conversation',
      'Takes up to 20 items.',
    ],
    [
      'GET',
      '/conversations/:conversationId/items/:itemId',
      'retrieveConversationItem',
      'Retrieve an item of a conversation',
      'Returns a message, tool call or other item.',
    ],
    [
      'DELETE',
      '/conversations/:conversationId/items/:itemId',
      'deleteConversationItem',
      'Delete an item of a conversation',
      'Returns the conversation without the item.',
    ],
  ],
  assistants: [
    ['GET', '/assistants', 'listAssistants', 'List assistants', 'Pagination follows the provider.'],
    ['POST', '/assistants', 'createAssistant', 'Create an assistant', 'Superseded by the Responses API.'],
    [
      'GET',
      '/assistants/:assistantId',
      'retrieveAssistant',
      'Retrieve an assistant',
      'Superseded by the Responses API.',
    ],
    [
      'POST',
      '/assistants/:assistantId',
      'updateAssistant',
      'Update an assistant',
      'Members that you leave out stay unchanged.',
    ],
    [
      'DELETE',
      '/assistants/:assistantId',
      'deleteAssistant',
      'Delete an assistant',
      'The threads of the assistant stay.',
    ],
  ],
  threads: [
    ['POST', '/threads', 'createThread', 'Create a thread', 'Superseded by conversations.'],
    [
      'POST',
      '/threads/runs',
      'createThreadAndRun',
      'Create a thread and run it',
      'With `stream`, the answer is sent as server-sent events.',
    ],
    ['GET', '/threads/:threadId', 'retrieveThread', 'Retrieve a thread', 'Returns the thread without its messages.'],
    ['POST', '/threads/:threadId', 'updateThread', 'Update a thread', 'Changes the metadata and tool resources.'],
    [
      'DELETE',
      '/threads/:threadId',
      'deleteThread',
      'Delete a thread',
      'Also deletes the messages and runs of the thread.',
    ],
    [
      'GET',
      '/threads/:threadId/messages',
      'listMessages',
      'List the messages of a thread',
      'Pagination follows the provider.',
    ],
    [
      'POST',
      '/threads/:threadId/messages',
      'createMessage',
      'Add a message to a thread',
      'The next run includes the message.',
    ],
    [
      'GET',
      '/threads/:threadId/messages/:messageId',
      'retrieveMessage',
      'Retrieve a message',
      'Returns the message with its attachments.',
    ],
    ['POST', '/threads/:threadId/messages/:messageId', 'updateMessage', 'Update a message', 'Changes the metadata.'],
    [
      'DELETE',
      '/threads/:threadId/messages/:messageId',
      'deleteMessage',
      'Delete a message',
      'Later runs do not include the message.',
    ],
    ['GET', '/threads/:threadId/runs', 'listRuns', 'List the runs of a thread', 'Pagination follows the provider.'],
    [
      'POST',
      '/threads/:threadId/runs',
      'createRun',
      'Run a thread',
      'With `stream`, the answer is sent as server-sent events.',
    ],
    [
      'GET',
      '/threads/:threadId/runs/:runId',
      'retrieveRun',
      'Retrieve a run',
      'Returns the status, and the action that the run waits for.',
    ],
    ['POST', '/threads/:threadId/runs/:runId', 'updateRun', 'Update a run', 'Changes the metadata.'],
    [
      'POST',
      '/threads/:threadId/runs/:runId/submit_tool_outputs',
      'submitToolOutputs',
      'Submit tool outputs to a run',
      'Send all outputs that the run requires in one request. With `stream`, the answer is sent as server-sent events.',
    ],
    ['POST', '/threads/:threadId/runs/:runId/cancel', 'cancelRun', 'Cancel a run', 'Finished steps are kept.'],
    [
      'GET',
      '/threads/:threadId/runs/:runId/steps',
      'listRunSteps',
      'List the steps of a run',
      'Pagination follows the provider.',
    ],
    [
      'GET',
      '/threads/:threadId/runs/:runId/steps/:stepId',
      'retrieveRunStep',
      'Retrieve a step of a run',
      'Returns a created message or tool calls.',
    ],
  ],
  vector_stores: [
    ['GET', '/vector_stores', 'listVectorStores', 'List vector stores', 'Pagination follows the provider.'],
    [
      'POST',
      '/vector_stores',
      'createVectorStore',
      'Create a vector store',
      'Uses files that are stored at the provider.',
    ],
    [
      'GET',
      '/vector_stores/:vectorStoreId',
      'retrieveVectorStore',
      'Retrieve a vector store',
      'Includes the number of files in each state.',
    ],
    [
      'POST',
      '/vector_stores/:vectorStoreId',
      'updateVectorStore',
      'Update a vector store',
      'Changes the name, metadata and expiry.',
    ],
    [
      'DELETE',
      '/vector_stores/:vectorStoreId',
      'deleteVectorStore',
      'Delete a vector store',
      'The files of the store are kept.',
    ],
    [
      'POST',
      '/vector_stores/:vectorStoreId/search',
      'searchVectorStore',
      'Search a vector store',
      'Returns the chunks that match a query, best first.',
    ],
    [
      'GET',
      '/vector_stores/:vectorStoreId/files',
      'listVectorStoreFiles',
      'List the files of a vector store',
      'Pagination follows the provider.',
    ],
    [
      'POST',
      '/vector_stores/:vectorStoreId/files',
      'createVectorStoreFile',
      'Add a file to a vector store',
      'The provider indexes the file in the background.',
    ],
    [
      'GET',
      '/vector_stores/:vectorStoreId/files/:fileId',
      'retrieveVectorStoreFile',
      'Retrieve a file of a vector store',
      'Includes the state of the indexing.',
    ],
    [
      'POST',
      '/vector_stores/:vectorStoreId/files/:fileId',
      'updateVectorStoreFile',
      'Update a file of a vector store',
      'Changes the attributes, which searches can filter by.',
    ],
    [
      'DELETE',
      '/vector_stores/:vectorStoreId/files/:fileId',
      'deleteVectorStoreFile',
      'Remove a file from a vector store',
      'The file itself is kept.',
    ],
    [
      'GET',
      '/vector_stores/:vectorStoreId/files/:fileId/content',
      'retrieveVectorStoreFileContent',
      'Retrieve the content of a file of a vector store',
      'Returns the text that was extracted from the file.',
    ],
    [
      'POST',
      '/vector_stores/:vectorStoreId/file_batches',
      'createFileBatch',
      'Add several files to a vector store',
      'The provider indexes the files in the background.',
    ],
    [
      'GET',
      '/vector_stores/:vectorStoreId/file_batches/:batchId',
      'retrieveFileBatch',
      'Retrieve a file batch',
      'Includes the number of files in each state.',
    ],
    [
      'POST',
      '/vector_stores/:vectorStoreId/file_batches/:batchId/cancel',
      'cancelFileBatch',
      'Cancel a file batch',
      'Files that are already indexed are kept.',
    ],
    [
      'GET',
      '/vector_stores/:vectorStoreId/file_batches/:batchId/files',
      'listFileBatchFiles',
      'List the files of a file batch',
      'Pagination follows the provider.',
    ],
  ],
};

export const relayTags: Readonly<Record<string, string>> = {
  [toAreaTag('moderations')]: 'Forwarded to the provider: classification of text and images.',
  [toAreaTag('images')]: 'Forwarded to the provider: creating and editing images.',
  [toAreaTag('audio')]: 'Forwarded to the provider: speech, transcription and translation.',
  [toAreaTag('rerank')]: 'Forwarded to the provider: ranking documents.',
  [toAreaTag('responses')]: 'The Responses API of any provider. Stored responses are forwarded to their provider.',
  [toAreaTag('conversations')]: 'Forwarded to the provider: conversations of the Responses API.',
  [toAreaTag('assistants')]: 'Forwarded to the provider: assistants. OpenAI replaced them with the Responses API.',
  [toAreaTag('threads')]: 'Forwarded to the provider: threads of assistants.',
  [toAreaTag('vector_stores')]: 'Forwarded to the provider: vector stores.',
};

const byModel =
  'Forwarded unchanged to the provider selected by the model (`@virtual-key/model`), `x-gateway-virtual-key`, ' +
  '`x-gateway-provider` or the first target of a config. Only the credential and the model are replaced. The provider ' +
  'validates the request.';
const byHeader =
  'Forwarded unchanged to the provider that stores the object, selected by `x-gateway-virtual-key`, `x-gateway-provider` or ' +
  'a config.';

export const storedObjectErrors = {
  stored_object_not_found:
    'workspaces share the account at the provider, and this workspace created no object with this ID (404)',
};
const relayErrors = {
  guardrails_not_applicable: 'guardrails of the config or the workspace cannot check this call',
  ...storedObjectErrors,
  use_a_key: 'the request was authenticated by a session cookie; send a gateway key (403)',
};
/** Calls that do not name a model count as one request in rates. */
const headerErrors = {
  ...targetErrors,
  unsupported_operation: callErrors.unsupported_operation,
  rate_limited: callErrors.rate_limited,
  ...relayErrors,
};

function asText(operationId: string, description: string): RouteText {
  const example: object | undefined = (relayExamples as Readonly<Record<string, object>>)[operationId];
  const namesModel = example !== undefined && 'model' in example;
  return {
    description: `${description} ${namesModel ? byModel : byHeader}`,
    errors: namesModel ? { ...callErrors, ...relayErrors } : headerErrors,
    ...(example === undefined ? {} : { example }),
  };
}

/** The routes of the pass-through areas. */
export function relayRoutes(deps: RelayDeps): Route[] {
  return Object.entries(areas).flatMap(([area, rows]) =>
    rows.map(([method, path, operationId, summary, description]) =>
      relayRoute(deps, {
        area: area as ScopedRelayArea,
        method,
        path: `/v1${path}`,
        operationId,
        summary,
        ...asText(operationId, description),
        isForm: forms.has(path),
        answers: path === speech ? 'application/octet-stream' : 'application/json',
      }),
    ),
  );
}
