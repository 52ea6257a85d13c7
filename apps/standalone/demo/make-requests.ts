import { words } from './words.ts';

/** One line of the input file, and the file that its result must be in. */
export type DemoRequest = { customId: string; body: Record<string, unknown>; endsIn: 'output' | 'errors' };

type Options = { lines: number; questions: readonly string[] };

/**
 * In one of this many lines, the request makes the simulator fail always, or fail sometimes so that the line is
 * retried.
 */
const failingEvery = 400;
const flakyEvery = 10;

// The simulator reads latency and length from the model name. The small model answers in about 0.2 s; the large one takes
// twice as long and writes more.
const models = {
  small: '@simulator/sim-small+lognormal:200ms:900ms',
  large: '@simulator/sim-large+lognormal:400ms:2s+220tok',
  flaky: '@simulator/sim-flaky-10',
  failing: '@simulator/sim-fault-400',
};

/**
 * Requests that a company could send overnight: questions, tickets to sort, invoices to read, texts to translate and
 * tools to call, each with its own prompt. The same arguments result in the same requests.
 */
export function* makeRequests({ lines, questions }: Options): Generator<DemoRequest> {
  for (let index = 0; index < lines; index += 1) {
    const random = randomFrom(index);
    const make = kinds[index % kinds.length] ?? askQuestion;
    const { kind, ...body } = make({ index, random, questions });
    const isFailing = index % failingEvery === failingEvery - 1 || (lines < failingEvery && index === lines - 1);
    const isFlaky = index % flakyEvery === 3;
    yield {
      customId: `${kind}-${String(index + 1).padStart(6, '0')}`,
      body: { ...body, ...(isFailing ? { model: models.failing } : isFlaky ? { model: models.flaky } : {}) },
      endsIn: isFailing ? 'errors' : 'output',
    };
  }
}

type Input = { index: number; random: () => number; questions: readonly string[] };
type Made = { kind: string; model: string; messages: Record<string, unknown>[] } & Record<string, unknown>;

const kinds: readonly ((input: Input) => Made)[] = [
  askQuestion,
  sortTicket,
  askQuestion,
  translate,
  readInvoice,
  callTool,
];

const user = (content: string) => ({ role: 'user', content });
const system = (content: string) => ({ role: 'system', content });

/** After the last question it starts over, each time with another instruction. */
function askQuestion({ index, random, questions }: Input): Made {
  const turn = Math.floor(index / kinds.length) * 2 + (index % kinds.length === 0 ? 0 : 1);
  const question = questions[turn % questions.length] ?? '';
  const round = Math.floor(turn / questions.length);
  const manner = round === 0 ? '' : ` Use at most ${20 + round} words.`;
  return {
    kind: 'question',
    model: random() < 0.3 ? models.large : models.small,
    messages: [system('You solve word problems. Show the steps, then the answer after ####.'), user(question + manner)],
    temperature: Math.round(random() * 10) / 10,
    max_tokens: pick([128, 256, 512], random),
    seed: index,
  };
}

function sortTicket({ index, random }: Input): Made {
  const product = pick(words.products, random);
  const trouble = pick(words.troubles, random);
  return {
    kind: 'ticket',
    model: models.small,
    messages: [
      system("Sort the customer's message. Answer in JSON."),
      user(
        `Ticket ${10_000 + index}: my ${product} ${trouble} since ${pick(words.days, random)}. ${pick(words.wishes, random)}`,
      ),
    ],
    response_format: {
      type: 'json_schema',
      json_schema: {
        name: 'ticket',
        strict: true,
        schema: {
          type: 'object',
          properties: {
            category: { type: 'string', enum: ['delivery', 'defect', 'payment', 'account', 'other'] },
            priority: { type: 'integer', minimum: 1, maximum: 4 },
            needs_reply: { type: 'boolean' },
            summary: { type: 'string', maxLength: 120 },
          },
          required: ['category', 'priority', 'needs_reply', 'summary'],
          additionalProperties: false,
        },
      },
    },
    temperature: 0,
    max_tokens: 200,
  };
}

function translate({ index, random }: Input): Made {
  const product = pick(words.products, random);
  return {
    kind: 'translation',
    model: models.large,
    messages: [
      system(`Translate into ${pick(words.languages, random)}. Keep numbers and names.`),
      user(`The ${product} weighs ${Math.round(random() * 90) / 10 + 1} kg and costs ${20 + (index % 500)}.95 euros.`),
      { role: 'assistant', content: 'Which form of address should I use?' },
      user(`The ${pick(['formal', 'familiar'], random)} one. It is for article ${200_000 + index} of our catalogue.`),
    ],
    top_p: 0.9,
    frequency_penalty: 0.2,
    max_completion_tokens: 400,
  };
}

function readInvoice({ index, random }: Input): Made {
  const items = Array.from({ length: 1 + Math.floor(random() * 4) }, () => {
    return `${1 + Math.floor(random() * 9)} x ${pick(words.products, random)} at ${(random() * 200 + 5).toFixed(2)}`;
  });
  return {
    kind: 'invoice',
    model: models.small,
    messages: [
      user(
        `Invoice ${2_026_000_000 + index}, ${pick(words.names, random)} & Sons: ${items.join('; ')}. Total and tax (19 %)?`,
      ),
    ],
    response_format: {
      type: 'json_schema',
      json_schema: {
        name: 'invoice',
        schema: {
          type: 'object',
          properties: {
            number: { type: 'string' },
            items: {
              type: 'array',
              items: {
                type: 'object',
                properties: { name: { type: 'string' }, amount: { type: 'number' } },
                required: ['name', 'amount'],
              },
            },
            tax: { type: 'number', minimum: 0 },
            total: { type: 'number', minimum: 0 },
          },
          required: ['number', 'items', 'total'],
        },
      },
    },
    max_tokens: 300,
  };
}

/** The simulated model calls a tool if the message names it. */
function callTool({ index, random }: Input): Made {
  const tool = (name: string, description: string, properties: Record<string, unknown>) => ({
    type: 'function',
    function: { name, description, parameters: { type: 'object', properties, required: Object.keys(properties) } },
  });
  const wantsWeather = random() < 0.5;
  const question = wantsWeather
    ? `Use get_weather: do I need a coat in ${pick(words.cities, random)} on day ${index % 365} of the year?`
    : `Use find_order: where is order ${700_000 + index} of ${pick(words.names, random)}?`;
  return {
    kind: 'tool',
    model: models.small,
    messages: [system('You are the assistant of a shop. Use the tools.'), user(`${question} (case ${index})`)],
    tools: [
      tool('get_weather', 'The forecast for a city', { city: { type: 'string' }, day: { type: 'integer' } }),
      tool('find_order', 'The state of an order', { order_id: { type: 'integer' }, customer: { type: 'string' } }),
    ],
    tool_choice: 'auto',
    max_tokens: 150,
  };
}

const pick = <Item>(items: readonly [Item, ...Item[]], random: () => number): Item =>
  items[Math.floor(random() * items.length)] ?? items[0];

/** mulberry32: the demo is the same on every machine. */
function randomFrom(seed: number): () => number {
  let state = (seed + 1) * 0x9e3779b9;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}
