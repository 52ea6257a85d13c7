import type { Route } from '#libs/http/route.ts';
import type { ScopedRelayArea } from '#libs/providers/provider.ts';
import { relayRoute, type RelayDeps, type RelayOperation } from './relay-call.ts';

/** Operations whose request is a form; all others take JSON. */
const forms: ReadonlySet<string> = new Set([
  '/images/edits',
  '/images/variations',
  '/audio/transcriptions',
  '/audio/translations',
]);
const speech = '/audio/speech';

type Row = [method: RelayOperation['method'], path: string, operationId: string, summary: string];

// All operations of the OpenAI API in these areas.
const areas: Readonly<Record<ScopedRelayArea, readonly Row[]>> = {
  moderations: [['POST', '/moderations', 'createModeration', 'Classify text or images']],
  images: [
    ['POST', '/images/generations', 'createImage', 'Create images'],
    ['POST', '/images/edits', 'editImage', 'Edit an image'],
    ['POST', '/images/variations', 'createImageVariation', 'Create variations of an image'],
  ],
  audio: [
    ['POST', '/audio/speech', 'createSpeech', 'Convert text to speech'],
    ['POST', '/audio/transcriptions', 'createTranscription', 'Transcribe audio'],
    ['POST', '/audio/translations', 'createTranslation', 'Translate audio into English text'],
  ],
  rerank: [['POST', '/rerank', 'createRerank', 'Rank documents by relevance']],
  responses: [
    ['POST', '/responses', 'createResponse', 'Create a model response'],
    ['POST', '/responses/input_tokens', 'countResponseInputTokens', 'Count the input tokens of a response'],
    ['POST', '/responses/compact', 'compactResponse', 'Compact the input of a long conversation'],
    ['GET', '/responses/:responseId', 'retrieveResponse', 'Retrieve a model response'],
    ['DELETE', '/responses/:responseId', 'deleteResponse', 'Delete a model response'],
    ['POST', '/responses/:responseId/cancel', 'cancelResponse', 'Cancel a background response'],
    ['GET', '/responses/:responseId/input_items', 'listResponseInputItems', 'List the input items of a response'],
  ],
  conversations: [
    ['POST', '/conversations', 'createConversation', 'Create a conversation'],
    ['GET', '/conversations/:conversationId', 'retrieveConversation', 'Retrieve a conversation'],
    ['POST', '/conversations/:conversationId', 'updateConversation', 'Update a conversation'],
    ['DELETE', '/conversations/:conversationId', 'deleteConversation', 'Delete a conversation'],
    ['GET', '/conversations/:conversationId/items', 'listConversationItems', 'List the items of a conversation'],
    ['POST', '/conversations/:conversationId/items', 'createConversationItems', 'Add items to a conversation'],
    [
      'GET',
      '/conversations/:conversationId/items/:itemId',
      'retrieveConversationItem',
      'Retrieve an item of a conversation',
    ],
    [
      'DELETE',
      '/conversations/:conversationId/items/:itemId',
      'deleteConversationItem',
      'Delete an item of a conversation',
    ],
  ],
  assistants: [
    ['GET', '/assistants', 'listAssistants', 'List assistants'],
    ['POST', '/assistants', 'createAssistant', 'Create an assistant'],
    ['GET', '/assistants/:assistantId', 'retrieveAssistant', 'Retrieve an assistant'],
    ['POST', '/assistants/:assistantId', 'updateAssistant', 'Update an assistant'],
    ['DELETE', '/assistants/:assistantId', 'deleteAssistant', 'Delete an assistant'],
  ],
  threads: [
    ['POST', '/threads', 'createThread', 'Create a thread'],
    ['POST', '/threads/runs', 'createThreadAndRun', 'Create a thread and run it'],
    ['GET', '/threads/:threadId', 'retrieveThread', 'Retrieve a thread'],
    ['POST', '/threads/:threadId', 'updateThread', 'Update a thread'],
    ['DELETE', '/threads/:threadId', 'deleteThread', 'Delete a thread'],
    ['GET', '/threads/:threadId/messages', 'listMessages', 'List the messages of a thread'],
    ['POST', '/threads/:threadId/messages', 'createMessage', 'Add a message to a thread'],
    ['GET', '/threads/:threadId/messages/:messageId', 'retrieveMessage', 'Retrieve a message'],
    ['POST', '/threads/:threadId/messages/:messageId', 'updateMessage', 'Update a message'],
    ['DELETE', '/threads/:threadId/messages/:messageId', 'deleteMessage', 'Delete a message'],
    ['GET', '/threads/:threadId/runs', 'listRuns', 'List the runs of a thread'],
    ['POST', '/threads/:threadId/runs', 'createRun', 'Run a thread'],
    ['GET', '/threads/:threadId/runs/:runId', 'retrieveRun', 'Retrieve a run'],
    ['POST', '/threads/:threadId/runs/:runId', 'updateRun', 'Update a run'],
    ['POST', '/threads/:threadId/runs/:runId/submit_tool_outputs', 'submitToolOutputs', 'Submit tool outputs to a run'],
    ['POST', '/threads/:threadId/runs/:runId/cancel', 'cancelRun', 'Cancel a run'],
    ['GET', '/threads/:threadId/runs/:runId/steps', 'listRunSteps', 'List the steps of a run'],
    ['GET', '/threads/:threadId/runs/:runId/steps/:stepId', 'retrieveRunStep', 'Retrieve a step of a run'],
  ],
  vector_stores: [
    ['GET', '/vector_stores', 'listVectorStores', 'List vector stores'],
    ['POST', '/vector_stores', 'createVectorStore', 'Create a vector store'],
    ['GET', '/vector_stores/:vectorStoreId', 'retrieveVectorStore', 'Retrieve a vector store'],
    ['POST', '/vector_stores/:vectorStoreId', 'updateVectorStore', 'Update a vector store'],
    ['DELETE', '/vector_stores/:vectorStoreId', 'deleteVectorStore', 'Delete a vector store'],
    ['POST', '/vector_stores/:vectorStoreId/search', 'searchVectorStore', 'Search a vector store'],
    ['GET', '/vector_stores/:vectorStoreId/files', 'listVectorStoreFiles', 'List the files of a vector store'],
    ['POST', '/vector_stores/:vectorStoreId/files', 'createVectorStoreFile', 'Add a file to a vector store'],
    [
      'GET',
      '/vector_stores/:vectorStoreId/files/:fileId',
      'retrieveVectorStoreFile',
      'Retrieve a file of a vector store',
    ],
    ['POST', '/vector_stores/:vectorStoreId/files/:fileId', 'updateVectorStoreFile', 'Update a file of a vector store'],
    [
      'DELETE',
      '/vector_stores/:vectorStoreId/files/:fileId',
      'deleteVectorStoreFile',
      'Remove a file from a vector store',
    ],
    [
      'GET',
      '/vector_stores/:vectorStoreId/files/:fileId/content',
      'retrieveVectorStoreFileContent',
      'Retrieve the content of a file of a vector store',
    ],
    ['POST', '/vector_stores/:vectorStoreId/file_batches', 'createFileBatch', 'Add several files to a vector store'],
    ['GET', '/vector_stores/:vectorStoreId/file_batches/:batchId', 'retrieveFileBatch', 'Retrieve a file batch'],
    ['POST', '/vector_stores/:vectorStoreId/file_batches/:batchId/cancel', 'cancelFileBatch', 'Cancel a file batch'],
    [
      'GET',
      '/vector_stores/:vectorStoreId/file_batches/:batchId/files',
      'listFileBatchFiles',
      'List the files of a file batch',
    ],
  ],
};

/** The routes of the pass-through areas. */
export function relayRoutes(deps: RelayDeps): Route[] {
  return Object.entries(areas).flatMap(([area, rows]) =>
    rows.map(([method, path, operationId, summary]) =>
      relayRoute(deps, {
        area: area as ScopedRelayArea,
        method,
        path: `/v1${path}`,
        operationId,
        summary,
        isForm: forms.has(path),
        answers: path === speech ? 'application/octet-stream' : 'application/json',
      }),
    ),
  );
}
