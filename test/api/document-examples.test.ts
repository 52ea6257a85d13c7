import path from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { OpenApiDocument } from '#libs/http/openapi.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { batchSteps, callSteps, fineTuningSteps, logSteps } from './document/call-steps.ts';
import { peopleSteps, recordSteps } from './document/record-steps.ts';
import {
  differences,
  documentedOperations,
  Ids,
  toExample,
  type Documented,
  type Json,
  type Step,
} from './document/walk.ts';

// Sends the example request of every operation in the OpenAPI document to a server, in an order in which each request finds
// the records it names. The answers are the examples of the document, in apps/api/examples.json. After a change of the API,
// update that file: npx vitest run test/api/document-examples.test.ts --update

const areas = { recordSteps, peopleSteps, callSteps, batchSteps, fineTuningSteps, logSteps };

let platform: TestPlatform;
let operations: Map<string, Documented>;
const ids = new Ids();
/** The examples as this run found them: unchanged where the server's answer has the same form. */
const examples: Record<string, unknown> = {};
const changes: string[] = [];
beforeAll(async () => {
  platform = await startPlatform({
    environment: {
      SLUICE_EGRESS_ALLOW: '127.0.0.0/8',
      SLUICE_FINE_TUNING_POLL_MIN: '10ms',
      SLUICE_FINE_TUNING_POLL_MAX: '100ms',
      SLUICE_ANALYTICS_INTERVAL: '50ms',
    },
  });
  const document = await fetch(`${new URL(platform.baseUrl).origin}/openapi.json`);
  operations = documentedOperations((await document.json()) as OpenApiDocument);
  ids.name('SIMULATOR', platform.simulatorUrl);
});
afterAll(() => platform?.stop());

async function ask(
  { method, path: template, example }: Documented,
  step: Step,
): Promise<{ status: number; answer: unknown }> {
  const { params = {}, query = {} } = ids.real({ params: step.params, query: step.query }) as Partial<Step>;
  const place = template.replaceAll(/\{(\w+)\}/g, (_all, name: string) =>
    encodeURIComponent(params[name] ?? `any-${name}`),
  );
  const url = new URL(place, platform.baseUrl);
  url.search = new URLSearchParams(query).toString();
  const isJson = step.form === undefined && example !== undefined;
  const form = new FormData();
  for (const [name, part] of Object.entries(step.form ?? {})) form.set(name, part);
  const body = isJson ? JSON.stringify(ids.real({ ...example, ...step.changes })) : form;
  const response = await fetch(url, {
    method,
    headers: {
      authorization: `Bearer ${platform.adminKey}`,
      ...(isJson ? { 'content-type': 'application/json' } : {}),
      ...(ids.real(step.headers) as Step['headers']),
    },
    ...(isJson || step.form ? { body } : {}),
  });
  const text = await response.text();
  const isRead = response.headers.get('content-type')?.startsWith('application/json') === true;
  return { status: response.status, answer: isRead ? JSON.parse(text) : text };
}

async function take(step: Step): Promise<void> {
  const operation = operations.get(step.id);
  if (!operation) throw new Error(`the document has no operation ${step.id}`);
  const { until } = step;
  const { status, answer } = until
    ? await eventually(
        () => ask(operation, step),
        (said) => said.status === 200 && until(said.answer as Json),
      )
    : await ask(operation, step);
  expect({ status, answer }).toMatchObject({ status: 200 });
  if (typeof answer !== 'object') return;
  const real = answer as Json;
  if (step.name !== undefined) ids.name(step.name, String(real['id']));
  for (const [name, value] of Object.entries(step.keeps?.(real) ?? {})) ids.name(name, value);
  // The simulator does not implement every operation. It returns a request it does not know, which must be the example.
  const isEcho = real['object'] === 'simulator.echo';
  expect(isEcho ? real['body'] : {}).toMatchObject(isEcho ? { json: atProvider(operation.example) } : {});
  expect(isEcho || step.isUnlike ? [] : compare(step, operation.answer, answer)).toEqual([]);
  ids.learn(examples[step.id], answer);
}

/**
 * How an answer differs from the example. The first step of an operation updates the example instead, unless that is not
 * possible; later steps have to match it.
 */
function compare(step: Step, documented: unknown, answer: unknown): string[] {
  if (Object.hasOwn(examples, step.id)) return differences(examples[step.id], answer, step);
  const found = documented === undefined ? ['has no example yet'] : differences(documented, answer, step);
  changes.push(...found.map((line) => `${step.id}: ${line}`));
  examples[step.id] = found.length === 0 ? documented : toExample(answer);
  return differences(examples[step.id], answer, step);
}

describe.each(Object.entries(areas))('%s', (_area, steps) => {
  test.each(steps)('$id', take);
});

test('analytics', async () => {
  const query = {
    time_of_generation_min: new Date(Date.now() - 3_600_000).toISOString(),
    time_of_generation_max: new Date().toISOString(),
  };
  const analytics = [...operations].filter(([, { path: template }]) => template.startsWith('/v1/analytics/'));
  const params = { metadataKey: 'team' };
  // Which calls were rescued, and by which key, depends on the other steps.
  const differs = ['retry', 'api_key_name'];
  const varies = [
    'requests',
    'cost',
    'ai_model',
    'ai_service',
    'provider',
    'virtual_key',
    'workspace_slug',
    'workspace_name',
  ];
  expect(analytics.length).toBeGreaterThan(30);
  for (const [id] of analytics) await take({ id, params, query, differs, varies });
});

test('the examples of the document are the answers of the server', async () => {
  const names = Object.keys(examples).toSorted();
  const lines = names.map((id) => `${JSON.stringify(id)}: ${JSON.stringify(examples[id])}`);
  const file = path.resolve(import.meta.dirname, '../../apps/api/examples.json');
  await expect(`{\n${lines.join(',\n')}\n}\n`).toMatchFileSnapshot(file, changes.join('\n'));
});

/** A forwarded body as the provider gets it: its model without the virtual key. */
function atProvider(example: object | undefined): unknown {
  const body = ids.real(example) as { model?: string };
  return body.model === undefined ? body : { ...body, model: body.model.replace(/^@[^/]+\//, '') };
}

test('every operation with an example request has a step', () => {
  const tried = new Set(Object.values(areas).flatMap((steps) => steps.map(({ id }) => id)));
  const missing = [...operations].filter(([id, { example }]) => example && !tried.has(id));
  expect(missing.map(([id]) => id)).toEqual([]);
});
