import { allRelayAreas, type Operation, type Provider, type RelayArea } from './provider.ts';

export type OperationForm = 'pass-through' | 'transformed' | 'not supported';
/** Operations with a route of their own; pass-through operations are described by their area. */
type OwnOperation = Extract<Operation, 'chat' | 'completions' | 'embeddings' | 'models'>;
type AreaName = RelayArea | 'fine_tuning';

export type ProviderDescription = {
  id: string;
  operations: Readonly<Record<OwnOperation, OperationForm>>;
  /** Pass-through areas are forwarded unchanged or not at all; fine-tuning jobs are Sluice's own. */
  areas: Readonly<Record<AreaName, OperationForm>>;
  /** With the names of settings in braces. Null if the virtual key has to give a `custom_host`. */
  address: string | null;
  /** Besides `key` and `custom_host`; optional ones end with a question mark. */
  settings: readonly string[];
  differences: readonly string[];
  notes: readonly string[];
  /** Some or all of its models have no JSON mode without a schema, so the gateway adds an instruction. */
  asksForJsonInWords: boolean;
};

const operationNames: readonly OwnOperation[] = ['chat', 'completions', 'embeddings', 'models'];
const areaNames: readonly AreaName[] = [...allRelayAreas, 'fine_tuning'];

/** What a provider supports and where it is reached, read from its adapter. */
export function describeProvider(provider: Provider): ProviderDescription {
  const formOf = (operation: OwnOperation): OperationForm => {
    const translation = provider.operations[operation];
    if (!translation) return 'not supported';
    return translation.passThrough ? 'pass-through' : 'transformed';
  };
  return {
    id: provider.id,
    operations: {
      chat: formOf('chat'),
      completions: formOf('completions'),
      embeddings: formOf('embeddings'),
      models: formOf('models'),
    },
    areas: Object.fromEntries(areaNames.map((area) => [area, areaFormOf(provider, area)])) as Record<
      AreaName,
      OperationForm
    >,
    address: provider.address ?? null,
    settings: Object.entries(provider.settings ?? {}).flatMap(([name, { unused }]) =>
      unused ? [] : [provider.address?.includes(`{${name}}`) ? name : `${name}?`],
    ),
    differences: provider.differences ?? [],
    notes: provider.notes ?? [],
    asksForJsonInWords: provider.operations.chat?.asksForJsonInWords !== undefined,
  };
}

function areaFormOf({ relay, fineTuning }: Provider, area: AreaName): OperationForm {
  if (area === 'fine_tuning') return fineTuning ? 'transformed' : 'not supported';
  return relay?.areas.includes(area) ? 'pass-through' : 'not supported';
}

/** The whole of docs/providers.md. */
export function providersToMarkdown(providers: readonly ProviderDescription[]): string {
  const code = (texts: readonly string[]): string => texts.map((text) => `\`${text}\``).join(', ') || '-';
  const operations = table(
    ['provider', ...operationNames],
    providers.map(({ id, operations }) => [`\`${id}\``, ...operationNames.map((name) => operations[name])]),
  );
  const areas = table(
    ['provider', ...areaNames],
    providers.map(({ id, areas: forms }) => [`\`${id}\``, ...areaNames.map((name) => forms[name])]),
  );
  const places = table(
    ['provider', 'base address', 'settings'],
    providers.map(({ id, address, settings }) => [
      `\`${id}\``,
      address === null ? 'its `custom_host`' : `\`${address.replace(/\/$/, '')}\``,
      code(settings),
    ]),
  );
  const inWords = providers.flatMap(({ id, asksForJsonInWords }) => (asksForJsonInWords ? [id] : []));
  const differences = table(
    ['provider', 'what is changed'],
    providers
      .filter((provider) => provider.differences.length > 0)
      .map((provider) => [`\`${provider.id}\``, provider.differences.join('; ')]),
  );
  return [
    '# Providers',
    '<!-- Made by `npm run generate`; a test compares it with the code. -->',
    '## Operations',
    [
      '- **pass-through**: the request is forwarded byte for byte, and so is the answer. Only the differences listed below,',
      '  and what a config edits, are changed.',
      '- **transformed**: request, answer, stream and errors are translated. Parameters that the provider does not support are',
      '  dropped and listed in `x-gateway-dropped-params`, or rejected if the config says so (`unsupported_params`).',
      '  Parameters that only the provider has keep their names.',
      '- **not supported**: rejected with 400 `unsupported_operation` before anything is sent.',
    ].join('\n'),
    operations,
    '## Other areas',
    [
      'All operations of an area (`GET /openapi.json` lists them) are forwarded unchanged to one provider, without cache and',
      'retries; of a config only the first target is used. Fine-tuning jobs are managed by Sluice: it uploads their files,',
      'creates and polls the jobs at the provider, and stores events, checkpoints and result files. Files and batches are',
      'managed by Sluice too, and a batch runs on every provider that supports its endpoint. Batch lines for `/v1/responses`,',
      '`/v1/moderations` and `/v1/images/generations` need the area, and have retries and all targets of a config.',
      '`stored_objects`: files, batches and fine-tuning jobs that live at the provider are read, cancelled and deleted there by',
      'their ids, if the request names the provider in its headers; so are its models deleted. Objects of Sluice always win.',
    ].join('\n'),
    areas,
    '## JSON answers',
    [
      '`response_format` uses the provider’s own JSON mode. For `json_object`, an object of any shape, there is none at',
      `${code(inWords)}. There an instruction to answer with a single JSON object and nothing`,
      'else is added after all others, and the answer is checked:',
    ].join('\n'),
    [
      '- A finished answer must be a JSON object of at most 1 MiB; white space and one Markdown fence around it are removed.',
      '  Any other answer fails the call with 502 `json_object_not_met` (a batch line goes to the error file); its tokens are',
      '  counted. It is retried only by a config whose `retry` lists 502, or by a fallback, because every attempt costs money.',
      '  Circuit breakers do not count it.',
      '- These pass unchecked: an answer that was cut off by the token limit, a refusal, and tool calls.',
      '- A stream is requested as a whole and sent in one piece, because it could begin with prose.',
    ].join('\n'),
    [
      '`json_schema` always uses the provider’s own JSON mode; models without one reject it (400). Without a `schema` it means',
      '`json_object`. What a provider does not support is listed under Notes; the provider itself rejects it.',
    ].join('\n'),
    '## Addresses and settings',
    'A `custom_host` replaces the whole base address, including its path. Settings are members of a virtual key, next to its\n' +
      "`key`; those with a question mark are optional. A setting of another provider is rejected. Virtual keys also accept Portkey's\n" +
      '`resourceName`, `deploymentName` and `apiVersion`, and a `deploymentConfig` with several deployments. A call goes to the\n' +
      'deployment whose `alias` or `deploymentName` is its model, and otherwise to the one with `is_default`.',
    places,
    '## Differences from the OpenAI API',
    'Calls to these providers are pass-through. Only requests and chunks that contain one of these members are changed.',
    differences,
    '## Notes',
    providers.flatMap(({ id, notes }) => notes.map((note) => `- \`${id}\`: ${note}`)).join('\n'),
    '',
  ]
    .join('\n\n')
    .replace(/\n+$/, '\n');
}

function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`;
  return [line(head), line(head.map(() => '---')), ...rows.map(line)].join('\n');
}
