import { readFileSync } from 'node:fs';
import type { OperationTexts } from '#libs/http/openapi.ts';
import type { Route } from '#libs/http/route.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { analyticsText } from './analytics.ts';
import { batchTexts } from './batches.ts';
import { callTexts } from './calls.ts';
import { forwardedTexts } from './forwarded.ts';
import { logTexts } from './logs.ts';
import { peopleTexts } from './people.ts';
import { recordTexts, specialRecordTexts } from './records.ts';
import { serverTexts } from './server.ts';

/** The answers of the examples, as test/api/document-examples.test.ts writes them. */
export const answers = JSON.parse(readFileSync(new URL('../examples.json', import.meta.url), 'utf8')) as Readonly<
  Record<string, object>
>;

const ofKinds: OperationTexts = Object.assign({}, ...resourceKinds.map((kind) => recordTexts(kind)));

/**
 * What is said of single operations.
 * @testOnly
 */
export const ownTexts: OperationTexts = {
  ...callTexts,
  ...batchTexts,
  ...forwardedTexts,
  ...specialRecordTexts,
  ...peopleTexts,
  ...logTexts,
  ...serverTexts,
};

/**
 * What the OpenAPI document says of operations beyond their summaries: how they behave, a body to send, and the codes of their own
 * errors. What is special of an operation comes before what holds for every kind of record.
 */
export const operationTexts = (routes: readonly Route[]): OperationTexts =>
  Object.fromEntries(
    routes.map((route) => {
      const own = ownTexts[route.operationId] ?? analyticsText(route) ?? {};
      const shared = ofKinds[route.operationId] ?? {};
      const description = [own.description, shared.description].filter((text) => text !== undefined).join(' ');
      const answer = answers[route.operationId];
      const said = { ...own, description, errors: { ...own.errors, ...shared.errors } };
      return [route.operationId, answer === undefined ? said : { ...said, answer }];
    }),
  );
