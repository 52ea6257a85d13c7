/** A request in which a forbidden text is somewhere that may reach a model, or is hidden in media. */
export type GuardrailForm = {
  name: string;
  route: '/chat/completions' | '/completions' | '/embeddings' | '/responses' | '/moderations' | '/images/generations';
  body: Readonly<Record<string, unknown>>;
};

const base64 = (text: string): string => Buffer.from(text).toString('base64');

/** Every known way to put a text before a model, with `word` in it. */
export function guardrailForms(word: string): GuardrailForm[] {
  const hello = { role: 'user', content: 'hello' };
  const url = `data:text/plain;base64,${base64(word)}`;
  const chat = (name: string, more: object): GuardrailForm => ({
    name: `chat: ${name}`,
    route: '/chat/completions',
    body: { messages: [hello], ...more },
  });
  const said = (name: string, message: object): GuardrailForm => chat(name, { messages: [message, hello] });
  const part = (name: string, value: object): GuardrailForm =>
    chat(name, { messages: [{ role: 'user', content: [value] }] });
  const tool = (name: string, definition: object): GuardrailForm =>
    chat(name, { tools: [{ type: 'function', function: { name: 'f', ...definition } }] });
  const properties = (value: object): object => ({ parameters: { type: 'object', properties: value } });
  const responses = (name: string, more: object): GuardrailForm => ({
    name: `responses: ${name}`,
    route: '/responses',
    body: { input: 'hello', ...more },
  });
  const item = (name: string, value: object): GuardrailForm => responses(name, { input: [value, hello] });
  const other = (route: GuardrailForm['route'], name: string, body: object): GuardrailForm => ({
    name: `${route}: ${name}`,
    route,
    body: { ...body },
  });
  return [
    said('an earlier message', { role: 'user', content: word }),
    said('the system message', { role: 'system', content: word }),
    said('the developer message', { role: 'developer', content: [{ type: 'text', text: word }] }),
    said('the name of a speaker', { role: 'user', name: word, content: 'x' }),
    said('an unknown role', { role: word, content: 'x' }),
    said('a refusal', { role: 'assistant', refusal: word }),
    said('reasoning_content', { role: 'assistant', content: 'x', reasoning_content: word }),
    said('reasoning_details', {
      role: 'assistant',
      content: 'x',
      reasoning_details: [{ type: 'reasoning.text', text: word }],
    }),
    said('an unknown member of a message', { role: 'user', content: 'x', note: { deep: [word] } }),
    said('images of a message', { role: 'user', content: 'x', images: [base64(word)] }),
    said('the name of a called tool', { role: 'assistant', tool_calls: [{ id: 'c', function: { name: word } }] }),
    said('the arguments of a called tool', {
      role: 'assistant',
      tool_calls: [{ id: 'c', function: { name: 'f', arguments: word } }],
    }),
    said('the input of a custom tool', { role: 'assistant', tool_calls: [{ id: 'c', custom: { input: word } }] }),
    said('a function call', { role: 'assistant', function_call: { name: 'f', arguments: word } }),
    said('the ID of a tool call', { role: 'tool', tool_call_id: word, content: 'x' }),
    said('the result of a tool', { role: 'tool', tool_call_id: 'c', content: word }),
    part('a text part', { type: 'text', text: word }),
    part('thinking', { type: 'thinking', thinking: word }),
    part('a part of an unknown type', { type: 'holo', holo: base64(word) }),
    part('a part without a type', { holo: base64(word) }),
    part('an image in the body', { type: 'image_url', image_url: { url: `data:image/png;base64,${base64(word)}` } }),
    part('an image at a URL', { type: 'image_url', image_url: { url: `https://example.com/${word}.png` } }),
    part('audio', { type: 'input_audio', input_audio: { data: base64(word), format: 'wav' } }),
    part('a text file in base64', { type: 'file', file: { filename: 'a.txt', file_data: url } }),
    part('the name of a file', { type: 'file', file: { filename: word, file_id: 'file-1' } }),
    part('a document', { type: 'document', source: { type: 'base64', media_type: 'text/plain', data: base64(word) } }),
    part('a data URI as text', { type: 'text', text: url }),
    tool('the description of a tool', { description: word }),
    tool('the description of a parameter', properties({ a: { description: word } })),
    tool('the name of a parameter', properties({ [word]: { type: 'string' } })),
    tool('a parameter named type', properties({ type: { description: word } })),
    tool('a parameter named image', properties({ image: { description: word } })),
    tool('an unknown type', properties({ a: { type: ['string', word] } })),
    tool('a possible value', properties({ a: { enum: ['x', word] } })),
    tool('a name in a default value', properties({ a: { default: { [word]: 1 } } })),
    tool('a schema definition', { parameters: { $defs: { [word]: {} } } }),
    chat('the choice of a tool', { tool_choice: { type: 'function', function: { name: word } } }),
    chat('functions', { functions: [{ name: 'f', description: word }] }),
    chat('the schema of the answer', { response_format: { type: 'json_schema', json_schema: { name: word } } }),
    chat('a predicted answer', { prediction: { type: 'content', content: [{ type: 'text', text: word }] } }),
    chat('documents', { documents: [{ title: 'a', text: word }] }),
    chat('the name of a member of a document', { documents: [{ [word]: 1 }] }),
    chat('chat_template', { chat_template: word }),
    chat('chat_template_kwargs', { chat_template_kwargs: { persona: word } }),
    chat('guided_choice', { guided_choice: ['x', word] }),
    chat('guided_json', { guided_json: { description: word } }),
    chat('prompt beside messages', { prompt: word }),
    chat('input beside messages', { input: word }),
    chat('system beside messages', { system: [{ type: 'text', text: word }] }),
    chat('plugins', { plugins: [{ id: 'web', search_prompt: word }] }),
    chat('web_search_options', { web_search_options: { user_location: { approximate: { city: word } } } }),
    chat('thinking', { thinking: { type: 'enabled', display: word } }),
    chat('reasoning_effort', { reasoning_effort: word }),
    chat('an unknown member', { novelty: word }),
    chat('token IDs', { prompt_token_ids: [1, 2, 3] }),
    { name: 'completions: the prompt', route: '/completions', body: { prompt: ['hello', word] } },
    other('/completions', 'token IDs', { prompt: [[1, 2]] }),
    other('/completions', 'the suffix', { prompt: 'hello', suffix: word }),
    other('/completions', 'an unknown member', { prompt: 'hello', novelty: [word] }),
    other('/embeddings', 'the input', { input: ['hello', word] }),
    other('/embeddings', 'token IDs', { input: [1, 2] }),
    other('/embeddings', 'an unknown member', { input: 'hello', instruction: word }),
    other('/moderations', 'the input', { input: ['hello', word] }),
    other('/moderations', 'a part', { input: [{ type: 'text', text: word }] }),
    other('/moderations', 'an image', { input: [{ type: 'image_url', image_url: { url } }] }),
    other('/images/generations', 'the prompt', { prompt: word }),
    other('/images/generations', 'a negative prompt', { prompt: 'hello', negative_prompt: word }),
    other('/images/generations', 'an image', { prompt: 'hello', image: base64(word) }),
    responses('the input', { input: word }),
    responses('the instructions', { instructions: word }),
    responses('a variable of a prompt', { prompt: { id: 'p', variables: { type: word } } }),
    responses('an image as a variable', {
      prompt: { id: 'p', variables: { a: { type: 'input_image', file_id: 'file-1' } } },
    }),
    responses('a tool', { tools: [{ type: 'function', name: 'f', description: word }] }),
    responses('the files of a tool', {
      tools: [{ type: 'code_interpreter', container: { type: 'auto', file_ids: ['file-1'] } }],
    }),
    responses('the header of an MCP server', { tools: [{ type: 'mcp', server_label: 's', server_description: word }] }),
    responses('the schema of the answer', { text: { format: { type: 'json_schema', description: word } } }),
    responses('an unknown member', { novelty: { a: [word] } }),
    item('a message', { role: 'user', content: [{ type: 'input_text', text: word }] }),
    item('an image', { role: 'user', content: [{ type: 'input_image', image_url: `https://example.com/${word}` }] }),
    item('a file by its ID', { role: 'user', content: [{ type: 'input_file', file_id: 'file-1' }] }),
    item('a file by its URL', { role: 'user', content: [{ type: 'input_file', file_url: 'https://example.com' }] }),
    item('a file in base64', { role: 'user', content: [{ type: 'input_file', filename: 'a', file_data: url }] }),
    item('the arguments of a call', { type: 'function_call', call_id: 'c', name: 'f', arguments: word }),
    item('the result of a call', { type: 'function_call_output', call_id: 'c', output: word }),
    item('an image as a result', {
      type: 'function_call_output',
      call_id: 'c',
      output: [{ type: 'input_image', image_url: 'https://example.com' }],
    }),
    item('reasoning', { type: 'reasoning', summary: [{ type: 'summary_text', text: word }] }),
    item('the reasoning itself', { type: 'reasoning', content: [{ type: 'reasoning_text', text: word }] }),
    item('code that was run', { type: 'code_interpreter_call', id: 'c', code: word }),
    item('the output of code', { type: 'code_interpreter_call', outputs: [{ type: 'logs', logs: word }] }),
    item('the output of a shell', { type: 'shell_call_output', call_id: 'c', output: [{ stdout: word }] }),
    item('search results', { type: 'file_search_call', results: [{ text: word }] }),
    item('the result of an MCP server', { type: 'mcp_call', arguments: '{}', output: word }),
    item('the tools of an MCP server', { type: 'mcp_list_tools', tools: [{ name: 'f', description: word }] }),
    item('a screenshot', { type: 'computer_call_output', output: { type: 'computer_screenshot', image_url: url } }),
    item('a generated image', { type: 'image_generation_call', result: base64(word) }),
    item('an item of an unknown type', { type: 'novelty_call', value: base64(word) }),
  ];
}
