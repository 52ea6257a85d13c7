import type { OperationTexts } from '#libs/http/openapi.ts';
import type { Route } from '#libs/http/route.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { analyticsText } from './analytics.ts';
import { answers } from './answers.ts';
import { batchTexts } from './batches.ts';
import { callTexts } from './calls.ts';
import { forwardedTexts } from './forwarded.ts';
import { logTexts } from './logs.ts';
import { peopleTexts } from './people.ts';
import { recordAnswers } from './record-answers.ts';
import { recordTexts, specialRecordTexts } from './records.ts';
import { serverTexts } from './server.ts';

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

const answersOfKinds: Readonly<Record<string, object>> = Object.assign(
  {},
  ...resourceKinds.map((kind) => recordAnswers(kind, (id) => ownTexts[id]?.example)),
);

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
      const answer = answers[route.operationId] ?? answersOfKinds[route.operationId];
      const said = { ...own, description, errors: { ...own.errors, ...shared.errors } };
      return [route.operationId, answer === undefined ? said : { ...said, answer }];
    }),
  );
