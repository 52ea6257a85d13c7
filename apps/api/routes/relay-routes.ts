import type { Route } from '#libs/http/route.ts';
import type { RelayArea } from '#libs/providers/provider.ts';
import { relayRoute, type RelayDeps, type RelayOperation } from './relay-call.ts';

/** JSON in and out, but for forms, and for answers that are bytes. */
const forms: ReadonlySet<string> = new Set([
  '/images/edits',
  '/images/variations',
  '/audio/transcriptions',
  '/audio/translations',
]);
const speech = '/audio/speech';

type Row = [method: RelayOperation['method'], path: string, operationId: string, summary: string];

// Every operation that OpenAI's API has in these areas, and nothing else.
const areas: Readonly<Record<RelayArea, readonly Row[]>> = {
  moderations: [['POST', '/moderations', 'createModeration', 'Classify text or images']],
  images: [
    ['POST', '/images/generations', 'createImage', 'Create images'],
    ['POST', '/images/edits', 'editImage', 'Edit an image'],
    ['POST', '/images/variations', 'createImageVariation', 'Vary an image'],
  ],
  audio: [
    ['POST', '/audio/speech', 'createSpeech', 'Speak a text'],
    ['POST', '/audio/transcriptions', 'createTranscription', 'Write speech down'],
    ['POST', '/audio/translations', 'createTranslation', 'Write speech down in English'],
  ],
  rerank: [['POST', '/rerank', 'createRerank', 'Order documents by their relevance']],
  responses: [
    ['POST', '/responses', 'createResponse', 'Create a model response'],
    ['POST', '/responses/input_tokens', 'countResponseInputTokens', 'Count the input tokens of a response'],
    ['POST', '/responses/compact', 'compactResponse', 'Compact the input of a long conversation'],
    ['GET', '/responses/:responseId', 'retrieveResponse', 'Retrieve a model response'],
    ['DELETE', '/responses/:responseId', 'deleteResponse', 'Delete a model response'],
    ['POST', '/responses/:responseId/cancel', 'cancelResponse', 'Cancel a background response'],
    ['GET', '/responses/:responseId/input_items', 'listResponseInputItems', 'List the input of a response'],
  ],
  conversations: [
    ['POST', '/conversations', 'createConversation', 'Create a conversation'],
    ['GET', '/conversations/:conversationId', 'retrieveConversation', 'Retrieve a conversation'],
    ['POST', '/conversations/:conversationId', 'updateConversation', 'Change a conversation'],
    ['DELETE', '/conversations/:conversationId', 'deleteConversation', 'Delete a conversation'],
    ['GET', '/conversations/:conversationId/items', 'listConversationItems', 'List the items of a conversation'],
    ['POST', '/conversations/:conversationId/items', 'createConversationItems', 'Add items to a conversation'],
    ['GET', '/conversations/:conversationId/items/:itemId', 'retrieveConversationItem', 'Retrieve an item'],
    ['DELETE', '/conversations/:conversationId/items/:itemId', 'deleteConversationItem', 'Delete an item'],
  ],
  assistants: [
    ['GET', '/assistants', 'listAssistants', 'List assistants'],
    ['POST', '/assistants', 'createAssistant', 'Create an assistant'],
    ['GET', '/assistants/:assistantId', 'retrieveAssistant', 'Retrieve an assistant'],
    ['POST', '/assistants/:assistantId', 'updateAssistant', 'Change an assistant'],
    ['DELETE', '/assistants/:assistantId', 'deleteAssistant', 'Delete an assistant'],
  ],
  threads: [
    ['POST', '/threads', 'createThread', 'Create a thread'],
    ['POST', '/threads/runs', 'createThreadAndRun', 'Create a thread and run it'],
    ['GET', '/threads/:threadId', 'retrieveThread', 'Retrieve a thread'],
    ['POST', '/threads/:threadId', 'updateThread', 'Change a thread'],
    ['DELETE', '/threads/:threadId', 'deleteThread', 'Delete a thread'],
    ['GET', '/threads/:threadId/messages', 'listMessages', 'List messages'],
    ['POST', '/threads/:threadId/messages', 'createMessage', 'Add a message'],
    ['GET', '/threads/:threadId/messages/:messageId', 'retrieveMessage', 'Retrieve a message'],
    ['POST', '/threads/:threadId/messages/:messageId', 'updateMessage', 'Change a message'],
    ['DELETE', '/threads/:threadId/messages/:messageId', 'deleteMessage', 'Delete a message'],
    ['GET', '/threads/:threadId/runs', 'listRuns', 'List runs'],
    ['POST', '/threads/:threadId/runs', 'createRun', 'Run a thread'],
    ['GET', '/threads/:threadId/runs/:runId', 'retrieveRun', 'Retrieve a run'],
    ['POST', '/threads/:threadId/runs/:runId', 'updateRun', 'Change a run'],
    ['POST', '/threads/:threadId/runs/:runId/submit_tool_outputs', 'submitToolOutputs', 'Give a run its tool outputs'],
    ['POST', '/threads/:threadId/runs/:runId/cancel', 'cancelRun', 'Cancel a run'],
    ['GET', '/threads/:threadId/runs/:runId/steps', 'listRunSteps', 'List the steps of a run'],
    ['GET', '/threads/:threadId/runs/:runId/steps/:stepId', 'retrieveRunStep', 'Retrieve a step of a run'],
  ],
  vector_stores: [
    ['GET', '/vector_stores', 'listVectorStores', 'List vector stores'],
    ['POST', '/vector_stores', 'createVectorStore', 'Create a vector store'],
    ['GET', '/vector_stores/:vectorStoreId', 'retrieveVectorStore', 'Retrieve a vector store'],
    ['POST', '/vector_stores/:vectorStoreId', 'updateVectorStore', 'Change a vector store'],
    ['DELETE', '/vector_stores/:vectorStoreId', 'deleteVectorStore', 'Delete a vector store'],
    ['POST', '/vector_stores/:vectorStoreId/search', 'searchVectorStore', 'Search a vector store'],
    ['GET', '/vector_stores/:vectorStoreId/files', 'listVectorStoreFiles', 'List its files'],
    ['POST', '/vector_stores/:vectorStoreId/files', 'createVectorStoreFile', 'Add a file'],
    ['GET', '/vector_stores/:vectorStoreId/files/:fileId', 'retrieveVectorStoreFile', 'Retrieve a file of it'],
    ['POST', '/vector_stores/:vectorStoreId/files/:fileId', 'updateVectorStoreFile', 'Change a file of it'],
    ['DELETE', '/vector_stores/:vectorStoreId/files/:fileId', 'deleteVectorStoreFile', 'Take a file out of it'],
    [
      'GET',
      '/vector_stores/:vectorStoreId/files/:fileId/content',
      'retrieveVectorStoreFileContent',
      'Read a file of it',
    ],
    ['POST', '/vector_stores/:vectorStoreId/file_batches', 'createFileBatch', 'Add many files'],
    ['GET', '/vector_stores/:vectorStoreId/file_batches/:batchId', 'retrieveFileBatch', 'Retrieve a file batch'],
    ['POST', '/vector_stores/:vectorStoreId/file_batches/:batchId/cancel', 'cancelFileBatch', 'Cancel a file batch'],
    [
      'GET',
      '/vector_stores/:vectorStoreId/file_batches/:batchId/files',
      'listFileBatchFiles',
      'List files of a file batch',
    ],
  ],
};

/** The routes of the pass-through areas. */
export function relayRoutes(deps: RelayDeps): Route[] {
  return Object.entries(areas).flatMap(([area, rows]) =>
    rows.map(([method, path, operationId, summary]) =>
      relayRoute(deps, {
        area: area as RelayArea,
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
