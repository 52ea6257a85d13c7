import type OpenAI from 'openai';
import { expectTypeOf, test } from 'vitest';
import type { relayExamples } from './relay-examples.ts';

/** Parameters as they are in a body: without those of the path, and with the names of files instead of their bytes. */
type Body<Params> = Params extends unknown
  ? {
      readonly [Name in keyof Params as Exclude<Name, 'thread_id' | 'vector_store_id'>]: Name extends 'file' | 'image'
        ? string
        : Unchanging<Params[Name]>;
    }
  : never;
type Unchanging<Value> = Value extends object ? { readonly [Name in keyof Value]: Unchanging<Value[Name]> } : Value;
type NamesOf<Params> = Params extends unknown ? keyof Params : never;

/** The parameters of each operation according to OpenAI's client. */
type Contracts = {
  createModeration: OpenAI.ModerationCreateParams;
  createImage: OpenAI.ImageGenerateParams;
  editImage: OpenAI.ImageEditParams;
  createImageVariation: OpenAI.ImageCreateVariationParams;
  createSpeech: OpenAI.Audio.SpeechCreateParams;
  createTranscription: OpenAI.Audio.TranscriptionCreateParams;
  createTranslation: OpenAI.Audio.TranslationCreateParams;
  createResponse: OpenAI.Responses.ResponseCreateParams;
  countResponseInputTokens: OpenAI.Responses.InputTokenCountParams;
  compactResponse: OpenAI.Responses.ResponseCompactParams;
  createConversation: OpenAI.Conversations.ConversationCreateParams;
  updateConversation: OpenAI.Conversations.ConversationUpdateParams;
  createConversationItems: OpenAI.Conversations.ItemCreateParams;
  createAssistant: OpenAI.Beta.AssistantCreateParams;
  updateAssistant: OpenAI.Beta.AssistantUpdateParams;
  createThread: OpenAI.Beta.ThreadCreateParams;
  createThreadAndRun: OpenAI.Beta.ThreadCreateAndRunParams;
  updateThread: OpenAI.Beta.ThreadUpdateParams;
  createMessage: OpenAI.Beta.Threads.MessageCreateParams;
  updateMessage: OpenAI.Beta.Threads.MessageUpdateParams;
  createRun: OpenAI.Beta.Threads.Runs.RunCreateParams;
  updateRun: OpenAI.Beta.Threads.Runs.RunUpdateParams;
  submitToolOutputs: OpenAI.Beta.Threads.Runs.RunSubmitToolOutputsParams;
  createVectorStore: OpenAI.VectorStoreCreateParams;
  updateVectorStore: OpenAI.VectorStoreUpdateParams;
  searchVectorStore: OpenAI.VectorStoreSearchParams;
  createVectorStoreFile: OpenAI.VectorStores.FileCreateParams;
  updateVectorStoreFile: OpenAI.VectorStores.FileUpdateParams;
  createFileBatch: OpenAI.VectorStores.FileBatchCreateParams;
};

type Examples = typeof relayExamples;
/** Operations whose example does not have the client's type, and members that the type does not have. */
type Wrong = {
  [Name in keyof Contracts]: Examples[Name] extends Body<Contracts[Name]>
    ? Exclude<keyof Examples[Name], NamesOf<Contracts[Name]>>
    : Name;
}[keyof Contracts];

// This fails in the compiler (npm run check).
test('examples of forwarded operations are what OpenAI’s client sends, but for one that it does not have', () => {
  expectTypeOf<Wrong>().toBeNever();
  expectTypeOf<Exclude<keyof Examples, keyof Contracts>>().toEqualTypeOf<'createRerank'>();
});
