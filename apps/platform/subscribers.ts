import { activitySubscriber } from '#libs/activity/activity-subscriber.ts';
import type { Subscriber } from '#libs/event-log/subscriber.ts';
import { deliverySubscriber } from '#libs/resources/webhooks/webhook-deliveries.ts';

/** Every subscriber of the event log; the workers run them. */
export const subscribers: readonly Subscriber[] = [activitySubscriber, deliverySubscriber];
