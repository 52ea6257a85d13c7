import type { CallOperation } from '#libs/calls/call.ts';
import type { CallTexts, Unreadable } from './call-texts.ts';

type Body = Readonly<Record<string, unknown>>;

/**
 * Returns the texts of a request's body: every string, wherever it is, except in the members listed in `unread`. An
 * unknown member is treated as read by the model, because providers and their servers accept more than any contract
 * lists. The depth of the body must be bounded.
 */
export function inputTexts(operation: CallOperation, body: Body): CallTexts {
  const inputName = inputNames[operation];
  const unreadMembers = operation === 'images' ? unreadOfImages : unread;
  const around = new Reader();
  for (const [name, value] of Object.entries(body)) {
    if (unreadMembers.has(name) || name === inputName) continue;
    if (isTokenIds(value)) around.unreadable = tokenIds;
    // A number directly in the body is an option.
    if (typeof value !== 'number') around.readMember(name, value);
  }
  const text = around.text();
  const said = text === '' ? [] : [text];
  if (inputName === undefined) {
    return { said, measured: measuredIn(operation, body), unreadable: around.unreadable };
  }
  // Each input of a list is a separate request, so each must pass separately.
  const inputs = listOf(body[inputName]).map((part) => {
    const reader = new Reader();
    if (isTokenIds([part])) reader.unreadable = tokenIds;
    else reader.readMember('content', [part]);
    return reader;
  });
  const texts = inputs.map((reader) => reader.text());
  const unreadable = inputs.find((reader) => reader.unreadable !== null)?.unreadable ?? around.unreadable;
  return { said: [...texts, ...said], measured: texts, unreadable };
}

/** The member whose parts are separate inputs. A conversation has none: all of it is one text. */
const inputNames: Readonly<Partial<Record<CallOperation, string>>> = {
  completions: 'prompt',
  images: 'prompt',
  embeddings: 'input',
  moderations: 'input',
};

/** A conversation is measured by its last message. */
function measuredIn(operation: CallOperation, body: Body): string[] {
  const messages = body[conversationNames[operation] ?? 'messages'];
  const last = listOf(messages).at(-1);
  if (last === undefined) return [];
  const reader = new Reader();
  const { content, parts } = (typeof last === 'string' ? { content: last } : (last ?? {})) as Body;
  reader.readMember('content', content ?? parts);
  return [reader.text()];
}

/** The member that has the conversation. */
const conversationNames: Readonly<Partial<Record<CallOperation, string>>> = {
  responses: 'input',
  generate_content: 'contents',
};

/** Collects the strings of values. */
class Reader {
  readonly #texts: string[] = [];
  unreadable: Unreadable | null = null;

  text(): string {
    return this.#texts.join('\n');
  }

  readMember(name: string, value: unknown, isMedia = false): void {
    const isMediaMember = mediaMembers.has(name) && !isEmpty(value);
    if (isMediaMember) this.#findMedia(name);
    this.#read(name, value, isMedia || isMediaMember);
  }

  #read(name: string, value: unknown, isMedia: boolean, isListed = false): void {
    if (typeof value === 'string') this.#readText(name, value, isMedia);
    else if (typeof value === 'number') {
      if (!specifiedNames.has(name)) this.#texts.push(String(value));
    } else if (Array.isArray(value)) {
      for (const item of value) this.#read(name, item, isMedia, true);
    } else if (typeof value === 'object' && value !== null) this.#readObject(name, value as Body, isMedia, isListed);
  }

  #readObject(name: string, value: Body, isMedia: boolean, isListed: boolean): void {
    const isUnreadable = partLists.has(name) && !isReadablePart(value, isListed);
    if (isUnreadable) this.#findMedia(value['type']);
    const ownNames = freeNames.get(name);
    for (const [member, child] of Object.entries(value)) {
      if (!specifiedNames.has(member)) this.#texts.push(member);
      if (ownNames === undefined) this.readMember(member, child, isMedia || isUnreadable);
      else this.#read(ownNames, child, isMedia);
    }
  }

  #readText(name: string, text: string, isMedia: boolean): void {
    if (text === '' || (optionMembers.has(name) && optionValues.has(text))) return;
    const isDataUri = dataUri.test(text);
    if (isDataUri) this.#findMedia('data URI');
    // These are the bytes of media that a guardrail lets pass. In any other place, the model reads such a string.
    if (isMedia && (isDataUri || (text.length > base64CharsMin && base64.test(text.slice(0, base64CharsMin))))) return;
    this.#texts.push(text);
  }

  #findMedia(what: unknown): void {
    const isKnown = typeof what === 'string' && (mediaMembers.has(what) || mediaTypes.has(what) || what === 'data URI');
    this.unreadable ??= { what: isKnown ? what : 'part of an unknown type', isMedia: true };
  }
}

const listOf = (value: unknown): readonly unknown[] =>
  Array.isArray(value) ? value : value === undefined || value === null ? [] : [value];

const isEmpty = (value: unknown): boolean =>
  value === null || value === undefined || value === '' || (Array.isArray(value) && value.length === 0);

const tokenIds: Unreadable = { what: 'list of token IDs', isMedia: false };
const isTokenIds = (value: unknown): boolean =>
  Array.isArray(value) && (typeof value[0] === 'number' || isTokenIds(value[0]));

const dataUri = /^data:[^,]{0,200};base64,/i;
const base64CharsMin = 256;
const base64 = /^[\w+/=-]*$/;

/**
 * `isListed`: it is in a list of parts. Any other object without a type, such as the input of a tool, is not a part.
 */
function isReadablePart(part: Body, isListed: boolean): boolean {
  const { type } = part;
  if (type !== undefined && type !== null) return typeof type === 'string' && readableTypes.has(type);
  if (!isListed || 'role' in part) return true;
  return Object.keys(part).every((name) => specifiedNames.has(name) && !mediaMembers.has(name));
}

const wordsOf = (text: string): ReadonlySet<string> => new Set(text.trim().split(/\s+/));

/** Top-level members that no model reads: they address, bound, label, store or deliver the answer. */
const unread = wordsOf(`
  model stream stream_options n user safety_identifier metadata store service_tier seed logit_bias stop
  encoding_format prompt_cache_key prompt_cache_retention include previous_response_id`);
const unreadOfImages: ReadonlySet<string> = new Set([
  ...unread,
  ...wordsOf('size quality style background output_format response_format moderation'),
]);

/** Members whose objects are messages, items of a conversation, or parts of one of them. */
const partLists = wordsOf('content contents parts input instructions system output outputs summary');

/**
 * Members whose own member names are chosen by the caller, not by the API. The value is the member whose rules apply to
 * theirs.
 */
const freeNames: ReadonlyMap<string, string> = new Map([
  ...['properties', 'patternProperties', '$defs', 'definitions', 'dependentSchemas'].map((name) => [name, ''] as const),
  ['variables', 'content'],
]);

const mediaMembers = wordsOf(`
  image images image_url image_data input_image input_image_mask mask video videos video_url input_video
  input_audio audio_url file_id file_ids file_data file_url b64_json inline_data inlineData fileData
  prompt_embeds input_embeds inputs_embeds`);

const mediaTypes = wordsOf(`
  image image_url input_image file input_file document audio audio_url input_audio video video_url input_video
  computer_screenshot computer_call_output image_generation_call`);

/** Types of parts and of items of which the model reads nothing but strings. */
const readableTypes = wordsOf(`
  text input_text output_text refusal summary_text reasoning_text thinking redacted_thinking tool_use tool_result
  message reasoning item_reference compaction logs
  function_call function_call_output custom_tool_call custom_tool_call_output file_search_call web_search_call
  computer_call code_interpreter_call local_shell_call local_shell_call_output shell_call shell_call_output
  apply_patch_call apply_patch_call_output mcp_call mcp_list_tools mcp_approval_request mcp_approval_response`);

// Names and values that the API specifies, which every caller uses. They do not count as the caller's words.
const specifiedNames: ReadonlySet<string> = new Set([
  ...mediaMembers,
  ...partLists,
  ...wordsOf(`
    type role name text content refusal reasoning_content reasoning reasoning_details thinking signature summary
    tool_calls function_call function custom arguments id index call_id tool_call_id encrypted_content phase status
    url detail filename data format file audio transcript annotations logprobs cache_control thought_signature
    action actions code outputs output results queries query operation error logs stdout stderr outcome exit_code
    score attributes server_label server_url approval_request_id approve reason container_id budget_tokens effort
    variables version prediction json_schema tool_use_id is_error input_schema
    description parameters strict schema title properties required items
    prefixItems enum const default examples nullable anyOf oneOf allOf not if then else additionalProperties
    patternProperties propertyNames minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength
    pattern minItems maxItems uniqueItems contains minProperties maxProperties additionalItems $ref $defs definitions
    $schema $id $anchor $comment deprecated readOnly writeOnly syntax definition grammar
    functionCall functionResponse args response thought thoughtSignature executableCode codeExecutionResult
    function_response thought_signature executable_code code_execution_result mimeType mime_type fileUri file_uri
    systemInstruction system_instruction functionDeclarations function_declarations parametersJsonSchema
    generationConfig generation_config toolConfig tool_config functionCallingConfig function_calling_config
    allowedFunctionNames allowed_function_names safetySettings safety_settings category threshold labels
    thinkingConfig thinking_config includeThoughts thinkingLevel maxOutputTokens stopSequences responseMimeType
    response_mime_type responseSchema response_schema responseJsonSchema response_json_schema propertyOrdering`),
]);

/** Members whose value is one of a few words of the API. Any other value counts as the caller's. */
const optionMembers = wordsOf(`
  type role status detail effort reasoning_effort verbosity tool_choice function_call summary mode format phase
  modalities truncation`);
const optionValues: ReadonlySet<string> = new Set([
  ...mediaTypes,
  ...readableTypes,
  ...wordsOf(`
    system developer user assistant tool function model AUTO ANY NONE VALIDATED
    OBJECT ARRAY STRING NUMBER INTEGER BOOLEAN
    object array string number integer boolean null custom grammar json_object json_schema ephemeral approximate
    web_search web_search_preview file_search code_interpreter image_generation mcp local_shell shell apply_patch
    computer_use_preview url_citation file_citation search open_page find exec exit content enabled disabled adaptive
    reasoning.text reasoning.summary reasoning.encrypted
    completed in_progress incomplete failed low medium high minimal xhigh max none auto required concise detailed
    original commentary final_answer wav mp3 pcm16 audio text`),
]);
