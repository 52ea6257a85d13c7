import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { OpenApiDocument } from '#libs/http/openapi.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { batchSteps, callSteps, fineTuningSteps, logSteps } from './document/call-steps.ts';
import { peopleSteps, recordSteps } from './document/record-steps.ts';
import { differences, documentedOperations, Ids, type Documented, type Json, type Step } from './document/walk.ts';

// The examples of the OpenAPI document: every request is one that the server takes, in an order in which each finds what it
// names, and every answer is what the server says.

const areas = { recordSteps, peopleSteps, callSteps, batchSteps, fineTuningSteps, logSteps };

/** Why the examples of an operation are not tried, by the beginning of its id. */
const reasons: Readonly<Record<string, string>> = {
  read: 'of analytics: their answers are made of many calls, and checked by test/api/analytics.test.ts',
  submitInvite: 'the form of a web page, sent in test/api/people.test.ts',
};

let platform: TestPlatform;
let operations: Map<string, Documented>;
const ids = new Ids();
beforeAll(async () => {
  platform = await startPlatform({
    environment: {
      SLUICE_EGRESS_ALLOW: '127.0.0.0/8',
      SLUICE_FINE_TUNING_POLL_MIN: '10ms',
      SLUICE_FINE_TUNING_POLL_MAX: '100ms',
    },
  });
  const document = await fetch(`${new URL(platform.baseUrl).origin}/openapi.json`);
  operations = documentedOperations((await document.json()) as OpenApiDocument);
  ids.name('SIMULATOR', platform.simulatorUrl);
});
afterAll(() => platform?.stop());

async function ask({ method, path, example }: Documented, step: Step): Promise<{ status: number; answer: unknown }> {
  const { params = {}, query = {} } = ids.real({ params: step.params, query: step.query }) as Partial<Step>;
  const place = path.replaceAll(/\{(\w+)\}/g, (_all, name: string) =>
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
      ...step.headers,
    },
    ...(isJson || step.form ? { body } : {}),
  });
  const text = await response.text();
  const isRead = response.headers.get('content-type')?.startsWith('application/json') === true;
  return { status: response.status, answer: isRead ? JSON.parse(text) : text };
}

describe.each(Object.entries(areas))('%s', (_area, steps) => {
  test.each(steps)('$id', async (step) => {
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
    const real = answer as Json;
    if (step.name !== undefined) ids.name(step.name, String(real['id']));
    for (const [name, value] of Object.entries(step.keeps?.(real) ?? {})) ids.name(name, value);
    ids.learn(operation.answer, answer);
    const isCompared = operation.answer !== undefined && !step.isUnlike;
    expect(isCompared ? differences(operation.answer, answer, step) : []).toEqual([]);
    // What the simulator does not have, it sends back: the example has to reach the provider as it is.
    const isEcho = real['object'] === 'simulator.echo';
    expect(isEcho ? real['body'] : {}).toMatchObject(isEcho ? { json: atProvider(operation.example) } : {});
  });
});

/** A forwarded body as the provider gets it: its model without the virtual key. */
function atProvider(example: object | undefined): unknown {
  const body = ids.real(example) as { model?: string };
  return body.model === undefined ? body : { ...body, model: body.model.replace(/^@[^/]+\//, '') };
}

test('every example of the document is tried, or there is a reason', () => {
  const compared = new Set(
    Object.values(areas).flatMap((steps) => steps.filter(({ isUnlike }) => !isUnlike).map(({ id }) => id)),
  );
  const untried = [...operations].filter(
    ([id, { example, answer }]) =>
      (example ?? answer) !== undefined &&
      !compared.has(id) &&
      !Object.keys(reasons).some((reason) => id.startsWith(reason)),
  );
  expect(untried.map(([id]) => id)).toEqual([]);
});
